// Groups of rows by offsets, and batches of matrices, through every quantiser that takes them.
#include "octavo/kernels/gpu/amax.h"
#include "octavo/kernels/gpu/cast.h"
#include "octavo/kernels/gpu/group_tiles.h"
#include "octavo/kernels/gpu/quantize_block.h"
#include "octavo/kernels/gpu/quantize_mx.h"
#include "octavo/kernels/gpu/quantize_row.h"
#include "operands.h"

namespace octavo::gpu::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using Offsets = std::vector<std::int32_t>;

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// Groups as their definition says, and the device's plan of them.
struct Plan {
  std::int64_t M, K, E, columns;
  int alignment;
  std::vector<std::int64_t> begin, end, begin_t, end_t;
  DeviceBuffer offs, ends, aligned_ends, tiles, amaxes;  // amaxes: [rows | groups x columns]

  Plan(const Offsets& o, std::int64_t m, std::int64_t k, int a)
      : M(m),
        K(k),
        E(static_cast<std::int64_t>(o.size())),
        columns(round_up(m, a) + E * a),
        alignment(a),
        offs(4 * o.size()),
        ends(4 * o.size()),
        aligned_ends(4 * o.size()),
        tiles(sizeof(GroupTile) * group_tile_count(columns, E)),
        amaxes(4 * (M + E * K)) {
    std::int64_t at = 0, at_t = 0;
    for (std::int32_t x : o) {
      begin.push_back(at), begin_t.push_back(at_t);
      at_t += round_up(std::clamp<std::int64_t>(x, at, M) - at, a);
      at = std::clamp<std::int64_t>(x, at, M);
      end.push_back(at), end_t.push_back(at_t);
    }
    offs.upload(o.data());
    plan_groups({.offs = offs.get<std::int32_t>(),
                 .groups = E,
                 .rows = M,
                 .alignment = a,
                 .columns = columns,
                 .ends = ends.get<std::int32_t>(),
                 .aligned_ends = aligned_ends.get<std::int32_t>(),
                 .tiles = tiles.get<GroupTile>(),
                 .zero = amaxes.get<float>(),
                 .zero_count = M + E * K},
                nullptr);
    const auto d_ends = ends.download<std::int32_t>(),
               d_aligned = aligned_ends.download<std::int32_t>();
    for (std::int64_t g = 0; g < E; ++g) {
      EXPECT_EQ(d_ends[g], end[g]) << "end of group " << g;
      EXPECT_EQ(d_aligned[g], end_t[g]) << "aligned end of group " << g;
    }
    for (float z : amaxes.download<float>()) EXPECT_EQ(z, 0.0f);
    tiles.download<GroupTile>();  // its guards
  }

  Groups groups() const {
    return {.count = E,
            .tiles = tiles.get<GroupTile>(),
            .tile_count = group_tile_count(columns, E),
            .columns = columns};
  }
  std::int64_t present() const { return E > 0 ? end.back() : 0; }
};

// Both layouts with blocks of `block` along the contraction (0: the whole row, or the group's
// column), by scalar loops. code_of(amax) gives the scale as a float (a code for MX) and the
// inv_scale.
struct Reference {
  Bytes rows, transposed;
  Floats row_scale, column_scale;  // (M, blocks), (E, K) or (K, columns / block)

  template <class ScaleOf>
  Reference(const Operand& x, const Plan& p, std::int64_t block, Format format,
            const ScaleOf& scale_of_amax) {
    const std::int64_t M = p.M, K = p.K;
    const std::int64_t along = block ? block : std::max<std::int64_t>(K, 1);
    const std::int64_t row_blocks = block ? (K + along - 1) / along : 1;
    rows.assign(M * K, 0);
    transposed.assign(K * p.columns, 0);
    row_scale.assign(M * row_blocks, 0.0f);
    for (std::int64_t m = 0; m < M; ++m) {
      for (std::int64_t b = 0; b < row_blocks; ++b) {
        float amax = 0.0f;
        const std::int64_t last = std::min(K, (b + 1) * along);
        const bool present = m < p.present();
        for (std::int64_t k = b * along; present && k < last; ++k) amax = amax_of(amax, x.at(m, k));
        const auto [scale, inv] = scale_of_amax(amax);
        row_scale[m * row_blocks + b] = scale;
        for (std::int64_t k = b * along; present && k < last; ++k) {
          rows[m * K + k] = quantize_element(x.at(m, k), inv, format);
        }
      }
    }
    const std::int64_t column_blocks = block ? p.columns / block : 0;
    column_scale.assign(block ? K * column_blocks : p.E * K, scale_of_amax(0.0f).first);
    for (std::int64_t g = 0; g < p.E; ++g) {
      const std::int64_t height = block ? block : std::max<std::int64_t>(p.end[g] - p.begin[g], 1);
      for (std::int64_t k = 0; k < K; ++k) {
        for (std::int64_t m0 = p.begin[g]; m0 < p.end[g]; m0 += height) {
          const std::int64_t m1 = std::min(p.end[g], m0 + height);
          const std::int64_t column = p.begin_t[g] + m0 - p.begin[g];
          float amax = 0.0f;
          for (std::int64_t m = m0; m < m1; ++m) amax = amax_of(amax, x.at(m, k));
          const auto [scale, inv] = scale_of_amax(amax);
          column_scale[block ? k * column_blocks + column / block : g * K + k] = scale;
          for (std::int64_t m = m0; m < m1; ++m) {
            transposed[k * p.columns + column + m - m0] = quantize_element(x.at(m, k), inv, format);
          }
        }
      }
    }
  }
};

auto fp32_scales(Format format, ScaleRounding rounding) {
  return [=](float amax) {
    const float inv = inv_scale_of(amax, format, rounding);
    return std::pair{scale_of(inv), inv};
  };
}

void expect_spans(const Operand& x, const Offsets& offs, Format format, ScaleRounding rounding,
                  bool rows_wanted, bool transposed_wanted) {
  const Plan plan(offs, x.rows(), x.columns(), 16);
  const Reference expected(x, plan, 0, format, fp32_scales(format, rounding));
  float *row = plan.amaxes.get<float>(), *column = row + plan.M;
  DeviceBuffer q(expected.rows.size()), qt(expected.transposed.size()), s(4 * plan.M),
      st(4 * plan.E * plan.K);
  const Groups groups = plan.groups();
  amax({.x = x.matrix(),
        .row = rows_wanted ? row : nullptr,
        .column = transposed_wanted ? column : nullptr,
        .groups = groups},
       nullptr);
  CastArgs args{.x = x.matrix(), .format = format, .rounding = rounding, .groups = groups};
  if (rows_wanted) args.rows = {q.get<std::uint8_t>(), row, CastScales::kLines, s.get<float>()};
  if (transposed_wanted) {
    args.transposed = {qt.get<std::uint8_t>(), column, CastScales::kLines, st.get<float>()};
  }
  cast(args, nullptr);
  plan.amaxes.download<float>();  // its guards
  if (rows_wanted) {
    expect_same(q.download<std::uint8_t>(), expected.rows, plan.K, "rows");
    expect_same(s.download<float>(), expected.row_scale, "row scales");
  }
  if (transposed_wanted) {
    expect_same(qt.download<std::uint8_t>(), expected.transposed, plan.columns, "transposed");
    expect_same(st.download<float>(), expected.column_scale, "column scales");
  }
  if (rows_wanted && !transposed_wanted) {
    DeviceBuffer q1(expected.rows.size()), s1(4 * plan.M);
    quantize_row({x.matrix(), q1.get<std::uint8_t>(), s1.get<float>(), format, rounding,
                  plan.ends.get<std::int32_t>() + plan.E - 1},
                 nullptr);
    expect_same(q1.download<std::uint8_t>(), expected.rows, plan.K, "rows in one pass");
    expect_same(s1.download<float>(), expected.row_scale, "row scales in one pass");
  }
}

void expect_blocks(const Operand& x, const Offsets& offs, Format format, ScaleRounding rounding,
                   bool rows_wanted, bool transposed_wanted) {
  const Plan plan(offs, x.rows(), x.columns(), 128);
  const Reference expected(x, plan, 128, format, fp32_scales(format, rounding));
  DeviceBuffer q(expected.rows.size()), qt(expected.transposed.size()),
      s(4 * expected.row_scale.size()), st(4 * expected.column_scale.size());
  QuantizeBlockArgs args{
      .x = x.matrix(), .format = format, .rounding = rounding, .groups = plan.groups()};
  if (rows_wanted) {
    args.rows = {q.get<std::uint8_t>(), s.get<float>(), (plan.K + 127) / 128, 1};
  }
  if (transposed_wanted) {
    args.transposed = {qt.get<std::uint8_t>(), st.get<float>(), plan.columns / 128, 1};
  }
  quantize_block(args, nullptr);
  if (rows_wanted) {
    expect_same(q.download<std::uint8_t>(), expected.rows, plan.K, "rows");
    expect_same(s.download<float>(), expected.row_scale, "row scales");
  }
  if (transposed_wanted) {
    expect_same(qt.download<std::uint8_t>(), expected.transposed, plan.columns, "transposed");
    expect_same(st.download<float>(), expected.column_scale, "column scales");
  }
}

void expect_mx(const Operand& x, const Offsets& offs, Format format, MxRounding rounding,
               bool rows_wanted, bool transposed_wanted) {
  const Plan plan(offs, x.rows(), x.columns(), 32);
  const Reference expected(x, plan, 32, format, [=](float amax) {
    const std::uint8_t code = mx_code_of(amax, format, rounding);
    return std::pair{static_cast<float>(code), inv_scale_e8m0(code)};
  });
  const auto codes = [](const Floats& f) { return Bytes(f.begin(), f.end()); };
  DeviceBuffer q(expected.rows.size()), qt(expected.transposed.size()),
      s(expected.row_scale.size()), st(expected.column_scale.size());
  QuantizeMxArgs args{
      .x = x.matrix(), .format = format, .rounding = rounding, .groups = plan.groups()};
  if (rows_wanted) args.rows = {q.get<std::uint8_t>(), s.get<std::uint8_t>()};
  if (transposed_wanted) args.transposed = {qt.get<std::uint8_t>(), st.get<std::uint8_t>()};
  quantize_mx(args, nullptr);
  if (rows_wanted) {
    expect_same(q.download<std::uint8_t>(), expected.rows, plan.K, "rows");
    expect_same(s.download<std::uint8_t>(), codes(expected.row_scale), (plan.K + 31) / 32,
                "row codes");
  }
  if (transposed_wanted) {
    expect_same(qt.download<std::uint8_t>(), expected.transposed, plan.columns, "transposed");
    expect_same(st.download<std::uint8_t>(), codes(expected.column_scale), plan.columns / 32,
                "column codes");
  }
}

// Ends of groups of these sizes.
Offsets ends_of(const Offsets& sizes) {
  Offsets ends;
  for (std::int32_t size : sizes) ends.push_back((ends.empty() ? 0 : ends.back()) + size);
  return ends;
}

struct Case {
  const char* name;
  Offsets offs;
  std::int64_t rows;
};

std::vector<Case> cases() {
  Offsets many;
  std::mt19937 random(5);
  for (int i = 0; i < 256; ++i) many.push_back(random() % 3 == 0 ? 0 : random() % 41);
  const Offsets many_ends = ends_of(many);
  Offsets more(600, 0);
  for (std::size_t i = 0; i < more.size(); ++i) more[i] = static_cast<std::int32_t>(3 * i / 2);
  return {{"uneven", ends_of({162, 0, 2577, 446, 0, 83}), 3268},
          {"uneven, rows of no group", ends_of({162, 0, 257, 46, 0, 83}), 700},
          {"no multiple of 32", ends_of({44, 0, 20}), 64},
          {"empty last", {16, 16, 0}, 16},
          {"empty first", {0, 32}, 32},
          {"only the last", {0, 0, 16}, 16},
          {"all empty", {0, 0, 0, 0}, 48},
          {"no rows", {0, 0, 0, 0}, 0},
          {"one group", {300}, 300},
          {"one token", {0, 1, 1}, 1},
          {"256 groups", many_ends, many_ends.back() + 17},
          {"600 groups", more, 900},
          {"decreasing", {16, 8, 32}, 48},
          {"negative", {-1, 16}, 32},
          {"past M", {16, 1 << 30, 20}, 40},
          {"worst", {INT32_MIN, INT32_MAX, -5}, 33}};
}

// test(x, offs, format, rows wanted, transposed wanted, number of the combination)
template <class Test>
void for_all_groups(const Test& test) {
  int i = 0;
  for (const Case& c : cases()) {
    for (std::int64_t K : {136, 272, 7}) {
      for (DType dtype : kDTypes) {
        const View view = kAllViews[++i % 6];
        if (view == View::kBroadcastRow && i % 2) continue;
        const Operand x(dtype, c.rows, K, i % 2 ? View::kContiguous : view, Values::kAdversarial,
                        i);
        for (Format format : kAllFormats) {
          ++i;
          SCOPED_TRACE(
              std::string(c.name) + ": " +
              describe(dtype, {c.rows, K}, i % 2 ? View::kContiguous : view, Values::kAdversarial) +
              " " + std::string(name(format)));
          test(x, c.offs, format, i % 4 != 2, i % 4 != 3, i);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GpuQuantizeGrouped, WholeRowsAndColumnsOfGroups) {
  OCTAVO_REQUIRE_GPU();
  for_all_groups(
      [](const Operand& x, const Offsets& offs, Format format, bool rows, bool transposed, int i) {
        expect_spans(x, offs, format, i % 3 ? ScaleRounding::kPowerOfTwo : ScaleRounding::kNone,
                     rows, transposed);
      });
}

TEST(GpuQuantizeGrouped, BlocksOf128FromTheGroupsStart) {
  OCTAVO_REQUIRE_GPU();
  for_all_groups(
      [](const Operand& x, const Offsets& offs, Format format, bool rows, bool transposed, int i) {
        expect_blocks(x, offs, format, i % 3 ? ScaleRounding::kNone : ScaleRounding::kPowerOfTwo,
                      rows, transposed);
      });
}

TEST(GpuQuantizeGrouped, MxBlocksFromTheGroupsStart) {
  OCTAVO_REQUIRE_GPU();
  constexpr MxRounding kRoundings[] = {MxRounding::kRceil, MxRounding::kFloor, MxRounding::kCeil,
                                       MxRounding::kEven};
  for_all_groups(
      [&](const Operand& x, const Offsets& offs, Format format, bool rows, bool transposed, int i) {
        if (flavour_of(format) != Flavour::kOCP) return;
        expect_mx(x, offs, format, kRoundings[i / 2 % 4], rows, transposed);
      });
}

// A batch of matrices, each with scales of its own: what every matrix alone gives.
TEST(GpuQuantizeGrouped, ABatchEqualsItsMatrices) {
  OCTAVO_REQUIRE_GPU();
  constexpr std::int64_t E = 3;
  int i = 0;
  for (DType dtype : kDTypes) {
    for (const Size& size : {Size{16, 8}, {144, 264}, {33, 127}, {256, 128}, {1, 1}}) {
      for (std::int64_t gap : {0, 8}) {  // rows between the matrices
        const std::int64_t N = size.rows, K = size.columns, n = N * K;
        const std::int64_t nb = (N + 127) / 128, kb = (K + 127) / 128, n32 = (N + 31) / 32,
                           k32 = (K + 31) / 32;
        const Operand all(dtype, E * (N + gap), K, View::kContiguous, Values::kAdversarial, ++i);
        const Format format = kAllFormats[i % 4];
        SCOPED_TRACE(describe(dtype, size, View::kContiguous, Values::kAdversarial) + " " +
                     std::string(name(format)) + " gap " + std::to_string(gap));
        const std::int64_t stride = (N + gap) * K;
        Matrix one = all.matrix();
        one.rows = N;
        // Every quantiser for one matrix, or all of them, into buffers of `e` matrices.
        struct Out {
          DeviceBuffer q, qt, s, st;
        };
        const auto run = [&](const Matrix& x, const Groups& groups, int kind) {
          const std::int64_t e = groups.count;
          auto out = std::unique_ptr<Out>(new Out{DeviceBuffer(e * n), DeviceBuffer(e * n),
                                                  DeviceBuffer(kind == 0   ? 4 * e
                                                               : kind == 1 ? 4 * e * N
                                                               : kind == 2 ? 4 * e * nb * kb
                                                                           : e * N * k32),
                                                  DeviceBuffer(kind == 0   ? 4 * e
                                                               : kind == 1 ? 4 * e * K
                                                               : kind == 2 ? 4 * e * nb * kb
                                                                           : e * K * n32)});
          auto *q = out->q.get<std::uint8_t>(), *qt = out->qt.get<std::uint8_t>();
          auto *s = out->s.get<float>(), *st = out->st.get<float>();
          if (kind < 2) {
            DeviceBuffer amaxes(4 * e * (1 + N + K));
            amaxes.zero();
            float *tensor = amaxes.get<float>(), *row = tensor + e, *column = row + e * N;
            amax({x, tensor, row, column, groups}, nullptr);
            const CastScales scales = kind ? CastScales::kLines : CastScales::kTensor;
            cast({.x = x,
                  .rows = {q, kind ? row : tensor, scales, s},
                  .transposed = {qt, kind ? column : tensor, scales, st},
                  .format = format,
                  .groups = groups},
                 nullptr);
            amaxes.download<float>();
          } else if (kind == 2) {
            quantize_block({.x = x,
                            .rows = {q, s, kb, 1, nb * kb},
                            .transposed = {qt, st, nb, 1, nb * kb},
                            .shape = BlockShape::k128x128,
                            .format = format,
                            .groups = groups},
                           nullptr);
          } else {
            quantize_mx({.x = x,
                         .rows = {q, out->s.get<std::uint8_t>()},
                         .transposed = {qt, out->st.get<std::uint8_t>()},
                         .format = format,
                         .groups = groups},
                        nullptr);
          }
          return out;
        };
        for (int kind = 0; kind < 4; ++kind) {
          const auto batch = run(one, {.count = E, .stride = stride}, kind);
          Out* const outs = batch.get();
          Bytes expected[4];
          for (std::int64_t e = 0; e < E; ++e) {
            Matrix x = one;
            x.data = static_cast<const char*>(one.data) + e * stride * bytes_of(dtype);
            const auto single = run(x, {}, kind);
            const DeviceBuffer* parts[] = {&single->q, &single->qt, &single->s, &single->st};
            for (int b = 0; b < 4; ++b) {
              const Bytes bytes = parts[b]->download<std::uint8_t>();
              expected[b].insert(expected[b].end(), bytes.begin(), bytes.end());
            }
          }
          expect_same(outs->q.download<std::uint8_t>(), expected[0], K, "rows");
          expect_same(outs->qt.download<std::uint8_t>(), expected[1], N, "transposed");
          expect_same(outs->s.download<std::uint8_t>(), expected[2], 4, "row scales");
          expect_same(outs->st.download<std::uint8_t>(), expected[3], 4, "column scales");
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo::gpu::testing
