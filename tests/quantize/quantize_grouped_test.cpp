#include "octavo/quantize/quantize_grouped.h"

#include "octavo/quantize/offsets.h"
#include "tests/error_of.h"
#include "tests/quantize/layout_reference.h"

namespace octavo {
namespace {

using reference::is_layout;
using reference::Layout;
using reference::quantize_layout;
using reference::transpose;
using reference::Values;
using reference::values_of;
using testing::error_of;

at::Tensor offsets_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int32_t> ends;
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) ends.push_back(static_cast<std::int32_t>(end += size));
  return at::tensor(ends, at::kInt);
}

// Freed blocks that the next tensors of these sizes are likely to get: whoever leaves a byte
// unwritten is found out.
void poison_freed_memory() {
  std::vector<at::Tensor> blocks;
  for (std::int64_t bytes = 64; bytes < 1 << 20; bytes *= 2) {
    for (int i = 0; i < 3; ++i) blocks.push_back(at::full({bytes}, 0xFF, at::kByte));
  }
}

LayoutSpec spec_of(const Granularity& granularity, Format format = Format::kE4M3FN) {
  return {.format = format,
          .granularity = granularity,
          .scale_rounding = granularity == Granularity::rowwise() ? ScaleRounding::kPowerOfTwo
                                                                  : ScaleRounding::kNone};
}

// Rows begin to end of the group, as a layout by itself: x's bytes that belong to it.
ScaledTensor rows_of(const ScaledTensor& whole, std::int64_t begin, std::int64_t end) {
  ScaledTensor out = whole;
  out.data = whole.data.narrow(0, begin, end - begin);
  out.scale = whole.scale.narrow(0, begin, end - begin);
  if (whole.scale_layout == ScaleLayout::kColumnMajor) {
    const std::int64_t r = end - begin, c = whole.scale.size(1);
    out.scale = at::empty_strided({r, c}, {1, r}, at::kFloat).copy_(out.scale);
  }
  out.logical_sizes = {end - begin, whole.columns()};
  return out;
}

bool all_zero(const at::Tensor& data) { return !data.view(at::kByte).any().item<bool>(); }

// The bytes and scales of zeros.
::testing::AssertionResult is_zeros(const at::Tensor& data, const at::Tensor& scale,
                                    const LayoutSpec& spec) {
  if (!all_zero(data)) return ::testing::AssertionFailure() << "data is not zero";
  const Layout want = quantize_layout(Values{1, 1, {0.0f}}, spec);
  const at::Tensor got = scale.view(spec.granularity.mx ? at::kByte : at::kFloat).to(at::kFloat);
  if (!(got == want.scale[0]).all().item<bool>()) {
    return ::testing::AssertionFailure() << "scale is not that of amax 0";
  }
  return ::testing::AssertionSuccess();
}

// Everything a GroupedOperand promises, from the definition of each group's own layouts.
void check(const at::Tensor& x, const std::vector<std::int64_t>& sizes, const LayoutSpec& rows,
           const LayoutSpec& transposed) {
  poison_freed_memory();
  const at::Tensor offs = offsets_of(sizes);
  const GroupedOperand got =
      quantize_grouped_operand(x, offs, {.rows = rows, .transposed = transposed});
  const std::int64_t m = x.size(0), k = x.size(1);
  const auto experts = static_cast<std::int64_t>(sizes.size());
  const std::int64_t alignment = group_alignment(transposed.granularity);
  const std::int64_t block = transposed.granularity.block_columns;
  EXPECT_TRUE(at::equal(got.offs, offs));
  ASSERT_EQ(got.rows.data.sizes(), at::IntArrayRef({m, k}));
  const std::int64_t mt = grouped_columns(m, experts, transposed.granularity);
  ASSERT_EQ(got.transposed.data.sizes(), at::IntArrayRef({k, mt}));
  ASSERT_EQ(mt % 16, 0);
  ASSERT_GE(mt, m);
  ASSERT_EQ(got.transposed.scale.sizes(),
            block == 0 ? at::IntArrayRef({experts, k}) : at::IntArrayRef({k, mt / block}));
  std::int64_t begin = 0, begin_transposed = 0;
  for (std::int64_t g = 0; g < experts; ++g) {
    SCOPED_TRACE("group " + std::to_string(g));
    const std::int64_t size = sizes[static_cast<std::size_t>(g)], end = begin + size;
    const Values values = values_of(x.narrow(0, begin, size));
    EXPECT_TRUE(
        is_layout(rows_of(got.rows, begin, end), rows, quantize_layout(values, rows), size, k));

    const std::int64_t aligned = (size + alignment - 1) / alignment * alignment;
    ASSERT_EQ(begin_transposed % alignment, 0);
    EXPECT_EQ(got.offs_transposed[g].item<int>(), begin_transposed + aligned);
    ScaledTensor part = got.transposed;
    part.data = part.data.narrow(1, begin_transposed, size).contiguous();
    part.scale = block == 0
                     ? part.scale.select(0, g).unsqueeze(1)
                     : part.scale.narrow(1, begin_transposed / block, (size + block - 1) / block);
    part.logical_sizes = {k, size};
    EXPECT_TRUE(
        is_layout(part, transposed, quantize_layout(transpose(values), transposed), k, size));
    EXPECT_TRUE(all_zero(got.transposed.data.narrow(1, begin_transposed + size, aligned - size)));
    begin = end;
    begin_transposed += aligned;
  }
  EXPECT_TRUE(is_zeros(got.rows.data.narrow(0, begin, m - begin),
                       got.rows.scale.narrow(0, begin, m - begin), rows));
  const std::int64_t past = mt - begin_transposed;
  EXPECT_TRUE(is_zeros(got.transposed.data.narrow(1, begin_transposed, past),
                       block == 0
                           ? got.transposed.scale.narrow(0, 0, 0)
                           : got.transposed.scale.narrow(1, begin_transposed / block, past / block),
                       transposed));
}

const Granularity kGrouped[] = {Granularity::rowwise(), Granularity::block_1x128(),
                                Granularity::mx_1x32()};

TEST(QuantizeGrouped, EveryGroupIsQuantisedByItself) {
  at::manual_seed(1);
  const std::vector<std::vector<std::int64_t>> cases = {{16, 16, 0},
                                                        {0, 32},
                                                        {0, 0, 16},
                                                        {44, 0, 20},
                                                        {1},
                                                        {0, 0, 0, 0},
                                                        {162, 0, 257, 46, 0, 83},
                                                        {130, 128, 1, 127, 129}};
  for (const auto& sizes : cases) {
    std::int64_t m = 0;
    for (const std::int64_t size : sizes) m += size;
    for (const std::int64_t k : {1, 33, 160}) {
      for (const std::int64_t past : {0, 7}) {
        at::Tensor x = at::randn({m + past, k}).to(k == 33 ? at::kBFloat16 : at::kFloat);
        x.mul_(at::exp(at::randn({m + past, 1})));
        if (past > 0) x.narrow(0, m, past).fill_(std::nan(""));  // never read
        for (const Granularity& g : kGrouped) {
          SCOPED_TRACE(to_string(g) + " K=" + std::to_string(k) + " past " + std::to_string(past) +
                       " sizes[0]=" + std::to_string(sizes[0]));
          check(x, sizes, spec_of(g), spec_of(g));
        }
      }
    }
  }
}

TEST(QuantizeGrouped, ManyExperts) {
  at::manual_seed(2);
  for (const std::int64_t experts : {64, 128, 256}) {
    std::vector<std::int64_t> sizes;
    std::int64_t m = 0;
    for (std::int64_t e = 0; e < experts; ++e) m += sizes.emplace_back(e * 7 % 19 * (e % 3));
    for (const Granularity& g : kGrouped) {
      check(at::randn({m, 40}), sizes, spec_of(g), spec_of(g));
    }
  }
}

TEST(QuantizeGrouped, StridesFormatsAndUnlikeLayouts) {
  at::manual_seed(3);
  const std::vector<std::int64_t> sizes = {20, 0, 45, 3};
  const at::Tensor plain = at::randn({70, 48});
  const at::Tensor turned = plain.t().contiguous().t();
  const at::Tensor sliced = at::randn({70, 96}).slice(1, 8, 56);
  const at::Tensor expanded = at::randn({1, 48}).expand({70, 48});
  for (const at::Tensor& x : {turned, sliced, expanded}) {
    for (const Granularity& g : kGrouped) check(x, sizes, spec_of(g), spec_of(g));
  }
  check(plain, sizes, spec_of(Granularity::rowwise(), Format::kE4M3FNUZ),
        spec_of(Granularity::rowwise(), Format::kE5M2FNUZ));
  check(plain, sizes, spec_of(Granularity::rowwise()), spec_of(Granularity::mx_1x32()));
  check(plain.to(at::kHalf), sizes, spec_of(Granularity::block_1x128()),
        spec_of(Granularity::rowwise()));
  check(at::randn({70, 0}), sizes, spec_of(Granularity::rowwise()),
        spec_of(Granularity::rowwise()));
  check(at::randn({0, 48}), {0, 0}, spec_of(Granularity::mx_1x32()),
        spec_of(Granularity::mx_1x32()));
}

TEST(QuantizeGrouped, ALayoutAloneHasTheSameBits) {
  const at::Tensor x = at::randn({70, 48}), offs = offsets_of({20, 0, 45, 3});
  for (const Granularity& g : kGrouped) {
    const auto bytes = [](const at::Tensor& t) {
      return t.element_size() == 1 ? t.view(at::kByte) : t;
    };
    const GroupedOperand both =
        quantize_grouped_operand(x, offs, {.rows = spec_of(g), .transposed = spec_of(g)});
    const GroupedOperand rows = quantize_grouped_operand(x, offs, {.rows = spec_of(g)});
    const GroupedOperand turned = quantize_grouped_operand(x, offs, {.transposed = spec_of(g)});
    EXPECT_TRUE(at::equal(bytes(both.rows.data), bytes(rows.rows.data)));
    EXPECT_TRUE(at::equal(bytes(both.rows.scale), bytes(rows.rows.scale)));
    EXPECT_TRUE(at::equal(bytes(both.transposed.data), bytes(turned.transposed.data)));
    EXPECT_TRUE(at::equal(bytes(both.transposed.scale), bytes(turned.transposed.scale)));
    EXPECT_FALSE(rows.transposed.defined());
    EXPECT_FALSE(rows.offs_transposed.defined());
    EXPECT_FALSE(turned.rows.defined());
  }
}

TEST(QuantizeGrouped, ANanChangesItsOwnGroupOnly) {
  at::Tensor x = at::randn({40, 48});
  const at::Tensor offs = offsets_of({17, 23});
  for (const Granularity& g : kGrouped) {
    const GroupedOperand clean = quantize_grouped_operand(x, offs, {.transposed = spec_of(g)});
    at::Tensor with_nan = x.clone();
    with_nan[20][5] = std::nan("");
    const GroupedOperand got = quantize_grouped_operand(with_nan, offs, {.transposed = spec_of(g)});
    const std::int64_t first = clean.offs_transposed[0].item<int>();
    EXPECT_TRUE(at::equal(clean.transposed.data.narrow(1, 0, first).view(at::kByte),
                          got.transposed.data.narrow(1, 0, first).view(at::kByte)));
    EXPECT_EQ(got.transposed.data[5][first + 3].view(at::kByte).item<int>(), 0x7F);
    if (g == Granularity::rowwise()) {
      EXPECT_TRUE(std::isnan(got.transposed.scale[1][5].item<float>()));
      EXPECT_EQ(got.transposed.scale.isnan().sum().item<int>(), 1);
    }
  }
}

// field_cases, Grouped GEMM and MoE: "Bad offsets. int64 and wrong length: an error everywhere.
// [16,8,32], [-1,16], last > M: an error on the CPU".
TEST(QuantizeGrouped, BadOffsetsAndOthersAreErrorsThatSayTheRepair) {
  const at::Tensor x = at::randn({32, 16});
  const auto with = [&](const at::Tensor& offs) {
    return [&x, offs] {
      quantize_grouped_operand(x, offs, {.rows = spec_of(Granularity::rowwise())});
    };
  };
  const auto expect = [](auto&& call, const std::vector<std::string>& parts) {
    const std::string message = error_of(call);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
    }
  };
  const auto ints = [](std::vector<std::int32_t> v) { return at::tensor(v, at::kInt); };
  expect(with(ints({16, 8, 32})), {"offs", "never decrease", "8 after 16 at group 1"});
  expect(with(ints({-1, 16})), {"offs", "-1 after 0 at group 0"});
  expect(with(ints({16, 33})), {"offs", "32 rows", "33", "running sum"});
  expect(with(ints({16, 32}).to(at::kLong)), {"offs", "int32", "Long", "to(torch.int32)"});
  expect(with(ints({16, 32}).view({1, 2})), {"offs", "(E)", "2 dimensions"});
  expect(with(at::empty({0}, at::kInt)), {"offs", "one or more"});
  expect(with(ints({8, 0, 16, 0}).slice(0, 0, 4, 2)), {"offs", "contiguous"});
  expect(
      [&] {
        check_offsets("offs", ints({16, 32}), 3, 32, at::kCPU);
      },
      {"offs", "each of 3 groups", "[2]"});

  const at::Tensor offs = ints({32});
  const auto quantize = [&](const at::Tensor& x, const OperandSpec& spec) {
    return [&, x, spec] { quantize_grouped_operand(x, offs, spec); };
  };
  expect(quantize(x, {.rows = spec_of(Granularity::tensorwise())}), {"rows", "use rowwise"});
  expect(quantize(x, {.transposed = spec_of(Granularity::block_128x128())}),
         {"transposed", "rowwise, 1x128 or mx1x32", "128x128"});
  expect(quantize(x.view({2, 16, 16}), {.rows = spec_of(Granularity::rowwise())}), {"x", "(M, K)"});
  expect(quantize(x.to(at::kLong), {.rows = spec_of(Granularity::rowwise())}), {"x", "Long"});
  expect(quantize(x, {}), {"spec", "neither"});
  expect(quantize(x, {.rows = spec_of(Granularity::mx_1x32(), Format::kE4M3FNUZ)}),
         {"e4m3fnuz", "rowwise"});
}

TEST(QuantizeExpertWeights, EveryExpertIsQuantisedByItself) {
  at::manual_seed(4);
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
           a.strides() == b.strides() &&
           at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte));
  };
  const std::pair<Granularity, Granularity> pairs[] = {
      {Granularity::rowwise(), Granularity::rowwise()},
      {Granularity::rowwise(), Granularity::tensorwise()},
      {Granularity::block_128x128(), Granularity::block_128x128()},
      {Granularity::mx_1x32(), Granularity::mx_1x32()}};
  for (const auto& [n, k] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {48, 33}, {130, 260}, {0, 16}, {16, 0}}) {
    const at::Tensor plain = at::randn({3, n, k}) * at::exp(at::randn({3, 1, 1}) * 3);
    for (const at::Tensor& w :
         {plain, plain.to(at::kBFloat16), plain.transpose(1, 2).contiguous().transpose(1, 2)}) {
      for (const auto& [rows, transposed] : pairs) {
        SCOPED_TRACE(to_string(rows) + " " + std::to_string(n) + "x" + std::to_string(k));
        poison_freed_memory();
        const OperandSpec spec{.rows = spec_of(rows), .transposed = spec_of(transposed)};
        const QuantizedOperand got = quantize_expert_weights(w, spec);
        EXPECT_EQ(got.rows.logical_sizes, (std::vector<std::int64_t>{3, n, k}));
        EXPECT_EQ(got.transposed.logical_sizes, (std::vector<std::int64_t>{3, k, n}));
        for (std::int64_t e = 0; e < 3; ++e) {
          const QuantizedOperand want = quantize_operand(w[e], spec);
          EXPECT_TRUE(same(expert(got.rows, e).data, want.rows.data));
          EXPECT_TRUE(same(expert(got.rows, e).scale, want.rows.scale));
          EXPECT_TRUE(same(expert(got.transposed, e).data, want.transposed.data));
          EXPECT_TRUE(same(expert(got.transposed, e).scale, want.transposed.scale));
          EXPECT_TRUE(at::equal(dequantize(got.rows)[e], dequantize(want.rows)));
        }
      }
    }
  }
  const std::string message = error_of([] {
    quantize_expert_weights(at::randn({2, 4, 4}), {.rows = spec_of(Granularity::block_1x128())});
  });
  EXPECT_NE(message.find("tensorwise, rowwise, 128x128 or mx1x32"), std::string::npos) << message;
}

}  // namespace
}  // namespace octavo
