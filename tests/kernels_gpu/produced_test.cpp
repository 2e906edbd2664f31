// Operands that are quantised while they are computed: every quantiser by every producer gives the
// bytes and scales of the same quantiser on what the operation itself writes.
#include <memory>

#include "octavo/kernels/gpu/group_tiles.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "octavo/kernels/gpu/swiglu.h"
#include "operands.h"

namespace octavo::gpu::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr DType kT = DType::kBF16;

// An operation on random inputs, its result written, and what produces the same.
struct Operation {
  std::int64_t rows, features;
  Operand a, b, c;
  DeviceBuffer written;

  Operation(std::int64_t m, std::int64_t f, Values values)
      : rows(m),
        features(f),
        a(kT, m, f, View::kContiguous, values, 1),
        b(kT, m, f, View::kPaddedRows, values, 2),
        c(kT, m, f, View::kContiguous, values, 3),
        written(static_cast<std::size_t>(4 * m * f)) {}

  static RowsOf rows_of(const Matrix& x) { return {const_cast<void*>(x.data), x.row_stride}; }
  static ConstRows const_rows(const Matrix& x) { return {x.data, x.row_stride}; }

  // b's rows are padded; all start 16 bytes aligned.
  SwigluArgs swiglu_args() {
    return {.rows = rows,
            .columns = features,
            .dtype = kT,
            .gate = rows_of(a.matrix()),
            .up = rows_of(b.matrix())};
  }
  Producer producer(Production what) const {
    return {.what = what,
            .gate = const_rows(a.matrix()),
            .up = const_rows(b.matrix()),
            .dh = const_rows(c.matrix()),
            .features = features};
  }
};

struct Case {
  Matrix written;  // in memory
  Matrix shape;    // without data
  Producer from;
};

Matrix without_data(const Matrix& x) { return {nullptr, kT, x.rows, x.columns, x.columns, 1}; }

Case swiglu_case(Operation& o) {
  SwigluArgs args = o.swiglu_args();
  args.h = {o.written.get(), o.features};
  swiglu(args, nullptr);
  const Matrix x{o.written.get(), kT, o.rows, o.features, o.features, 1};
  return {x, without_data(x), o.producer(Production::kSwiglu)};
}

// `first`: 0 or features for a half, -1 for both.
Case gradients_case(Operation& o, std::int64_t first) {
  SwigluArgs args = o.swiglu_args();
  args.dh = Operation::rows_of(o.c.matrix());
  args.dgate = {o.written.get(), 2 * o.features};
  args.dup = {o.written.get<std::uint16_t>() + o.features, 2 * o.features};
  swiglu_backward(args, nullptr);
  const std::int64_t columns = first < 0 ? 2 * o.features : o.features;
  const Matrix x{o.written.get<std::uint16_t>() + std::max<std::int64_t>(first, 0),
                 kT,
                 o.rows,
                 columns,
                 2 * o.features,
                 1};
  Producer from = o.producer(Production::kSwigluGradients);
  from.first_column = std::max<std::int64_t>(first, 0);
  return {x, without_data(x), from};
}

// What a quantiser wrote.
struct Layouts {
  Bytes rows, transposed, row_scale, column_scale;
};

void expect_equal(const Layouts& got, const Layouts& want, const std::string& what) {
  EXPECT_TRUE(got.rows == want.rows) << what << ": rows";
  EXPECT_TRUE(got.transposed == want.transposed) << what << ": transposed";
  EXPECT_TRUE(got.row_scale == want.row_scale) << what << ": row scales";
  EXPECT_TRUE(got.column_scale == want.column_scale) << what << ": column scales";
}

// Buffers of one quantised matrix.
struct Outputs {
  DeviceBuffer rows, transposed, row_scale, column_scale;

  Outputs(std::int64_t m, std::int64_t k, std::int64_t columns, std::int64_t groups)
      : rows(static_cast<std::size_t>(m * k)),
        transposed(static_cast<std::size_t>(k * columns)),
        row_scale(static_cast<std::size_t>(4 * m * ((k + 31) / 32))),
        column_scale(static_cast<std::size_t>(4 * k * (groups + columns / 16))) {}
  Layouts download() const {
    return {rows.download<std::uint8_t>(), transposed.download<std::uint8_t>(),
            row_scale.download<std::uint8_t>(), column_scale.download<std::uint8_t>()};
  }
};

QuantizeBlockArgs block_args(const Case& c, bool produced, const Outputs& o, Format format,
                             Groups groups) {
  return {.x = produced ? c.shape : c.written,
          .rows = {o.rows.get<std::uint8_t>(), o.row_scale.get<float>(), 1, c.shape.rows},
          .transposed = {o.transposed.get<std::uint8_t>(), o.column_scale.get<float>(), 1,
                         c.shape.columns},
          .format = format,
          .groups = groups,
          .from = produced ? c.from : Producer{}};
}

QuantizeMxArgs mx_args(const Case& c, bool produced, const Outputs& o, Format format,
                       Groups groups) {
  return {.x = produced ? c.shape : c.written,
          .rows = {o.rows.get<std::uint8_t>(), o.row_scale.get<std::uint8_t>()},
          .transposed = {o.transposed.get<std::uint8_t>(), o.column_scale.get<std::uint8_t>()},
          .format = format,
          .groups = groups,
          .from = produced ? c.from : Producer{}};
}

// Offsets on the device and the plan of their tiles.
struct Plan {
  std::int64_t columns = 0;
  std::unique_ptr<DeviceBuffer> offs, ends, aligned, tiles;
  Groups groups;

  Plan(const std::vector<std::int32_t>& o, std::int64_t m, int alignment) {
    const auto e = static_cast<std::int64_t>(o.size());
    columns = (m + alignment - 1) / alignment * alignment + e * alignment;
    const auto count = static_cast<std::size_t>(4 * e);
    offs = std::make_unique<DeviceBuffer>(count);
    ends = std::make_unique<DeviceBuffer>(count);
    aligned = std::make_unique<DeviceBuffer>(count);
    tiles = std::make_unique<DeviceBuffer>(sizeof(GroupTile) *
                                           static_cast<std::size_t>(group_tile_count(columns, e)));
    offs->upload(o.data());
    plan_groups({.offs = offs->get<std::int32_t>(),
                 .groups = e,
                 .rows = m,
                 .alignment = alignment,
                 .columns = columns,
                 .ends = ends->get<std::int32_t>(),
                 .aligned_ends = aligned->get<std::int32_t>(),
                 .tiles = tiles->get<GroupTile>()},
                nullptr);
    groups = {.count = e,
              .tiles = tiles->get<GroupTile>(),
              .tile_count = group_tile_count(columns, e),
              .columns = columns};
  }
};

enum class Family { kBlocks, kMx };

Layouts quantise(const Case& c, bool produced, Family family, Format format,
                 const std::vector<std::int32_t>& offs) {
  std::unique_ptr<Plan> plan;
  Groups groups;
  if (!offs.empty()) {
    const int alignment = family == Family::kBlocks ? 128 : family == Family::kMx ? 32 : 16;
    plan = std::make_unique<Plan>(offs, c.shape.rows, alignment);
    groups = plan->groups;
  }
  const Outputs o(c.shape.rows, c.shape.columns, plan ? plan->columns : c.shape.rows,
                  plan ? groups.count : 1);
  if (family == Family::kBlocks) {
    quantize_block(block_args(c, produced, o, format, groups), nullptr);
  } else {
    quantize_mx(mx_args(c, produced, o, format, groups), nullptr);
  }
  return o.download();
}

void expect_produced(const Case& c, Format format, const std::vector<std::int32_t>& offs,
                     const std::string& what) {
  ASSERT_TRUE(fits_producer(c.from, c.shape, format, !offs.empty())) << what;
  for (Family family : {Family::kBlocks, Family::kMx}) {
    expect_equal(quantise(c, true, family, format, offs), quantise(c, false, family, format, offs),
                 what + ", family " + std::to_string(static_cast<int>(family)));
  }
}

constexpr Size kProducedSizes[] = {{16, 8}, {128, 128}, {144, 264}, {2064, 16}, {272, 520}};

TEST(GpuProduced, SwigluIsQuantisedAsItIsWritten) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size : kProducedSizes) {
    for (Values values : {Values::kNormal, Values::kAdversarial}) {
      Operation o(size.rows, size.columns, values);
      expect_produced(swiglu_case(o), Format::kE4M3FN, {}, describe(kT, size, {}, values));
    }
  }
}

TEST(GpuProduced, SwigluGradientsAreQuantisedAsTheyAreWritten) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size : kProducedSizes) {
    for (Values values : {Values::kNormal, Values::kAdversarial}) {
      for (Format format : {Format::kE4M3FN, Format::kE5M2}) {
        for (std::int64_t first : {std::int64_t{-1}, std::int64_t{0}, size.columns}) {
          Operation o(size.rows, size.columns, values);
          expect_produced(gradients_case(o, first), format, {},
                          describe(kT, size, {}, values) + " from " + std::to_string(first));
        }
      }
    }
  }
}

TEST(GpuProduced, GroupsOfAnySize) {
  OCTAVO_REQUIRE_GPU();
  const std::vector<std::vector<std::int32_t>> offsets = {
      {300}, {17, 17, 150, 299}, {0, 0, 128, 256}, {1, 2, 3, 3}};
  for (const auto& offs : offsets) {
    for (Values values : {Values::kNormal, Values::kAdversarial}) {
      Operation o(300, 264, values);
      const std::string what = "groups " + std::to_string(offs.size());
      expect_produced(swiglu_case(o), Format::kE4M3FN, offs, what + " swiglu");
      expect_produced(gradients_case(o, -1), Format::kE4M3FN, offs, what + " gradients");
    }
  }
}

TEST(GpuProduced, RowsAloneAndWritten) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size : {Size{3, 16}, Size{144, 272}, Size{33, 1040}, Size{5, 16384}}) {
    for (Values values : {Values::kNormal, Values::kAdversarial}) {
      Operation o(size.rows, size.columns, values);
      for (int which = 0; which < 2; ++which) {
        const Case c = which == 0 ? swiglu_case(o) : gradients_case(o, -1);
        const std::int64_t m = c.shape.rows, k = c.shape.columns;
        const std::int32_t all_but_one = static_cast<std::int32_t>(m - 1);
        DeviceBuffer present(4);
        present.upload(&all_but_one);
        for (const std::int32_t* rows : {static_cast<const std::int32_t*>(nullptr),
                                         static_cast<const std::int32_t*>(present.get())}) {
          DeviceBuffer q(static_cast<std::size_t>(m * k)), s(static_cast<std::size_t>(4 * m));
          DeviceBuffer q2(static_cast<std::size_t>(m * k)), s2(static_cast<std::size_t>(4 * m));
          DeviceBuffer copy(static_cast<std::size_t>(2 * m * k));
          quantize_row({.x = c.written,
                        .data = q.get<std::uint8_t>(),
                        .scale = s.get<float>(),
                        .present = rows},
                       nullptr);
          const QuantizeRowArgs args{.x = c.shape,
                                     .data = q2.get<std::uint8_t>(),
                                     .scale = s2.get<float>(),
                                     .present = rows,
                                     .from = c.from,
                                     .written = copy.get()};
          ASSERT_TRUE(fits_row_producer(args));
          quantize_row(args, nullptr);
          EXPECT_TRUE(q2.download<std::uint8_t>() == q.download<std::uint8_t>());
          EXPECT_TRUE(s2.download<std::uint8_t>() == s.download<std::uint8_t>());
          const auto got = copy.download<std::uint16_t>();
          auto want = o.written.download<std::uint16_t>();
          want.resize(got.size());
          if (rows) std::fill(want.end() - k, want.end(), std::uint16_t{0});
          EXPECT_TRUE(got == want);
        }
      }
    }
  }
}

// Both halves of the gradients in one launch: every family, and rows alone.
TEST(GpuProduced, PairsAreTheirTwoMatrices) {
  OCTAVO_REQUIRE_GPU();
  for (const Size& size : kProducedSizes) {
    Operation o(size.rows, size.columns, Values::kAdversarial);
    const Case half[2] = {gradients_case(o, 0), gradients_case(o, size.columns)};
    const std::int64_t m = size.rows, k = size.columns;
    for (Family family : {Family::kBlocks, Family::kMx}) {
      const Outputs first(m, k, m, 1), second(m, k, m, 1);
      const Outputs* const out[2] = {&first, &second};
      const auto args_of = [&](const auto& make, int i) { return make(half[i], *out[i]); };
      if (family == Family::kBlocks) {
        const auto blocks = [&](const Case& c, const Outputs& x) {
          return block_args(c, true, x, Format::kE5M2, {});
        };
        quantize_block_pair(args_of(blocks, 0), args_of(blocks, 1), nullptr);
      } else {
        const auto mx = [&](const Case& c, const Outputs& x) {
          return mx_args(c, true, x, Format::kE5M2, {});
        };
        quantize_mx_pair(args_of(mx, 0), args_of(mx, 1), nullptr);
      }
      for (int i = 0; i < 2; ++i) {
        expect_equal(out[i]->download(), quantise(half[i], false, family, Format::kE5M2, {}),
                     describe(kT, size, {}, {}) + ", half " + std::to_string(i) + ", family " +
                         std::to_string(static_cast<int>(family)));
      }
    }
  }
}

TEST(GpuProduced, RefusesWhatKernelsDoNotTake) {
  OCTAVO_REQUIRE_GPU();
  Operation o(32, 64, Values::kNormal);
  const Case c = swiglu_case(o);
  EXPECT_TRUE(fits_producer(c.from, c.shape, Format::kE4M3FN, false));
  EXPECT_FALSE(fits_producer(c.from, c.shape, Format::kE5M2, false));      // gradients only
  EXPECT_FALSE(fits_producer(c.from, c.shape, Format::kE4M3FNUZ, false));  // no instruction
  Matrix odd = c.shape;
  odd.rows = 17;
  EXPECT_FALSE(fits_producer(c.from, odd, Format::kE4M3FN, false));
  EXPECT_TRUE(fits_producer(c.from, odd, Format::kE4M3FN, true));
  Producer misaligned = c.from;
  misaligned.up.data = static_cast<const char*>(misaligned.up.data) + 2;
  EXPECT_FALSE(fits_producer(misaligned, c.shape, Format::kE4M3FN, false));
  EXPECT_FALSE(fits_producer({}, c.shape, Format::kE4M3FN, false));
}

}  // namespace
}  // namespace octavo::gpu::testing
