// What runs below float8_linear: every dispatcher call of forward and backward is recorded, and the
// kernels' counters are read. No operand may be copied or transposed, and no kernel may run more
// often than the three products need.
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <mutex>
#include <set>

#include "octavo/kernels/counter.h"
#include "tests/ops/reference.h"

namespace octavo {
namespace {

using testing::leaf;

// Names of all dispatcher calls, on any thread, while it lives.
class Recorder {
 public:
  Recorder() {
    instance_ = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&Recorder::on_call).scopes({at::RecordScope::FUNCTION}));
  }
  ~Recorder() {
    at::removeCallback(handle_);
    instance_ = nullptr;
  }
  std::map<std::string, int> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& function) {
    std::lock_guard lock(instance_->mutex_);
    ++instance_->calls_[function.name()];
    return nullptr;
  }
  static inline Recorder* instance_ = nullptr;
  mutable std::mutex mutex_;
  std::map<std::string, int> calls_;
  at::CallbackHandle handle_;
};

// Calls that allocate or only look at memory differently. Whatever is not here, not ours and not a
// product would read or write an operand once more.
const std::set<std::string> kHarmless = {
    "aten::empty",       "aten::empty_strided", "aten::view",    "aten::_reshape_alias",
    "aten::t",           "aten::transpose",     "aten::detach",  "detach",
    "aten::as_strided",  "aten::expand",        "aten::reshape", "aten::is_same_size",
    "aten::result_type", "aten::resolve_conj"};

// The calls that are neither harmless, nor ours, nor a product.
std::map<std::string, int> copies(const std::map<std::string, int>& calls) {
  std::map<std::string, int> found;
  for (const auto& [name, count] : calls) {
    if (kHarmless.count(name) || name == "aten::mm") continue;
    if (name.rfind("octavo::", 0) == 0) continue;
    if (name.rfind("autograd::engine::evaluate_function", 0) == 0) continue;  // a node, no call
    found[name] = count;
  }
  return found;
}

// How x, w and dy lie in memory. A contiguous() on a contiguous tensor returns before any call, so
// only the views show one that should not be there.
enum class Memory : std::uint8_t { kContiguous, kTransposedView, kColumnSlice };
constexpr Memory kEveryMemory[] = {Memory::kContiguous, Memory::kTransposedView,
                                   Memory::kColumnSlice};

const char* name(Memory memory) {
  if (memory == Memory::kContiguous) return "contiguous";
  return memory == Memory::kTransposedView ? "transposed view" : "column slice";
}

// A leaf (R, C) of random numbers, a view unless `memory` is kContiguous.
at::Tensor random_leaf(std::int64_t rows, std::int64_t columns, at::ScalarType dtype, Memory memory,
                       bool requires_grad) {
  if (memory == Memory::kContiguous) {
    return leaf(at::randn({rows, columns}), dtype, requires_grad);
  }
  const bool turned = memory == Memory::kTransposedView;
  const at::Tensor base =
      (turned ? at::randn({columns, rows}) : at::randn({rows, columns + 24})).to(dtype);
  const at::Tensor view = turned ? base.t() : base.narrow(1, 8, columns);
  return view.detach().set_requires_grad(requires_grad);
}

struct Counts {
  std::uint64_t amax, quantize, decode, epilogue, column_sum;
  friend bool operator==(const Counts&, const Counts&) = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << "amax " << c.amax << ", quantize " << c.quantize << ", decode " << c.decode
             << ", epilogue " << c.epilogue << ", column_sum " << c.column_sum;
}

Counts counts_now() {
  const kernels::Counters& c = kernels::counters();
  return {c.amax, c.quantize, c.decode, c.epilogue, c.column_sum};
}

Counts operator-(const Counts& a, const Counts& b) {
  return {a.amax - b.amax, a.quantize - b.quantize, a.decode - b.decode, a.epilogue - b.epilogue,
          a.column_sum - b.column_sum};
}

Counts operator+(const Counts& a, const Counts& b) { return a - (Counts{} - b); }

// Kernels of one quantize_operand call: one pass that writes, after one that reads where a scale
// spans more than the row at hand. Of a transposed view the rows at hand are the transposed
// layout's.
Counts of_operand(std::optional<LayoutSpec> rows, std::optional<LayoutSpec> transposed,
                  Memory memory = Memory::kContiguous) {
  if (memory == Memory::kTransposedView) std::swap(rows, transposed);
  if (!rows && !transposed) return {};
  const auto spans = [](const std::optional<LayoutSpec>& layout) {
    return layout &&
           (layout->granularity.block_rows == 0 || layout->granularity.block_columns == 0);
  };
  const bool rows_at_hand = !transposed && rows->granularity == Granularity::rowwise();
  return {(spans(rows) || spans(transposed)) && !rows_at_hand, 1, 0, 0, 0};
}

// Kernels of one product into `dtype`: two operands decoded; an epilogue pass where scales come
// after the product, or a bias or a rounding does.
Counts of_product(const ProductSpec& product, bool bias, at::ScalarType dtype) {
  if (product.high_precision()) return {};
  const bool scale_after =
      product.a->granularity.block_columns == 0 && product.b->granularity.block_columns == 0;
  return {0, 0, 2, scale_after || bias || dtype != at::kFloat, 0};
}

struct Case {
  bool dx = true, dw = true, bias = true;
  KeepWeightTransposed keep = KeepWeightTransposed::kOn;
  at::ScalarType dtype = at::kFloat;
  Memory memory = Memory::kContiguous;
};

struct Observed {
  std::map<std::string, int> calls;
  Counts counts;
};

Observed observe(const Recipe& recipe, const Case& c) {
  at::manual_seed(1);
  const at::Tensor x = random_leaf(48, 160, c.dtype, c.memory, c.dx),
                   w = random_leaf(32, 160, c.dtype, c.memory, c.dw),
                   bias = leaf(at::randn({32}), c.dtype, c.bias);
  const at::Tensor dy = random_leaf(48, 32, c.dtype, c.memory, false);
  const std::optional<at::Tensor> b = c.bias ? std::optional<at::Tensor>(bias) : std::nullopt;
  const Counts before = counts_now();
  Recorder recorder;
  const at::Tensor y = float8_linear(x, w, b, recipe, {.keep_weight_transposed = c.keep});
  if (c.memory == Memory::kContiguous) {
    torch::autograd::backward({y}, {dy});
  } else {
    // AccumulateGrad would copy dx and dw into the strides of the views.
    torch::autograd::variable_list wanted;
    for (const at::Tensor& t : {x, w, bias}) {
      if (t.requires_grad()) wanted.push_back(t);
    }
    torch::autograd::grad({y}, wanted, {dy});
  }
  return {recorder.calls(), counts_now() - before};
}

// The kernels the design allows: x, w and dy once each (w again where its transposed layout was not
// kept), three products, one sum for the bias.
Counts expected(const Recipe& recipe, const Case& c) {
  const LinearSpec spec = recipe.resolve(Flavour::kOCP);
  const std::optional<LayoutSpec> none;
  const bool keep = c.keep == KeepWeightTransposed::kOn;
  const bool dw_fp8 = c.dw && !spec.dw.high_precision();
  Counts counts = of_operand(spec.forward.a, dw_fp8 ? spec.dw.b : none, c.memory) +
                  of_operand(spec.forward.b, c.dx && keep ? spec.dx.b : none, c.memory) +
                  of_operand(c.dx ? spec.dx.a : none, dw_fp8 ? spec.dw.a : none, c.memory) +
                  of_product(spec.forward, c.bias, c.dtype);
  if (c.dx && !keep) counts = counts + of_operand(none, spec.dx.b, c.memory);
  if (c.dx) counts = counts + of_product(spec.dx, false, c.dtype);
  if (c.dw) counts = counts + of_product(spec.dw, false, c.dtype);
  if (c.bias) ++counts.column_sum;
  return counts;
}

void expect_no_copies_and_the_expected_kernels(const std::string& text, const Case& c) {
  SCOPED_TRACE(text + ", " + c10::toString(c.dtype) + ", " + name(c.memory) +
               (c.keep == KeepWeightTransposed::kOn ? ", kept" : ", not kept"));
  const Recipe recipe = Recipe::parse(text);
  const Observed seen = observe(recipe, c);
  EXPECT_EQ(copies(seen.calls), (std::map<std::string, int>{}));
  EXPECT_EQ(seen.calls.at("aten::mm"), 3);
  EXPECT_EQ(seen.calls.at("octavo::float8_linear"), 1);
  EXPECT_EQ(seen.calls.at("octavo::float8_linear_forward"), 1);
  EXPECT_EQ(seen.calls.at("octavo::float8_linear_backward"), 1);
  EXPECT_EQ(seen.counts, expected(recipe, c));
}

TEST(Dispatch, NoCopyOfAnOperandAndExactlyTheExpectedKernels) {
  for (const std::string& text : testing::recipes()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const KeepWeightTransposed keep :
           {KeepWeightTransposed::kOn, KeepWeightTransposed::kOff}) {
        for (const Memory memory : kEveryMemory) {
          expect_no_copies_and_the_expected_kernels(
              text, {.keep = keep, .dtype = dtype, .memory = memory});
        }
      }
    }
  }
}

// field_cases, Module and autograd: "a frozen weight costs no weight-gradient GEMM".
TEST(Dispatch, AFrozenWeightCostsNoWeightGradientGemm) {
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    for (int bits = 1; bits < 8; ++bits) {
      const Case c{.dx = bool(bits & 1), .dw = bool(bits & 2), .bias = bool(bits & 4)};
      const Observed seen = observe(recipe, c);
      EXPECT_EQ(seen.calls.at("aten::mm"), 1 + c.dx + c.dw) << bits;
      EXPECT_EQ(seen.counts, expected(recipe, c)) << bits;
      EXPECT_EQ(copies(seen.calls), (std::map<std::string, int>{})) << bits;
    }
  }
}

TEST(Dispatch, WithoutGradientsOnlyRowsAreQuantised) {
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    const LinearSpec spec = recipe.resolve(Flavour::kOCP);
    const at::Tensor x = at::randn({48, 160}), w = leaf(at::randn({32, 160}), at::kFloat);
    at::NoGradGuard no_grad;
    const Counts before = counts_now();
    Recorder recorder;
    float8_linear(x, w, std::nullopt, recipe);
    EXPECT_EQ(counts_now() - before, of_operand(spec.forward.a, std::nullopt) +
                                         of_operand(spec.forward.b, std::nullopt) +
                                         of_product(spec.forward, false, at::kFloat));
    EXPECT_EQ(copies(recorder.calls()), (std::map<std::string, int>{}));
  }
}

TEST(Dispatch, LeadingDimensionsAndExpandedGradientsAreNotCopied) {
  for (const std::string& text : testing::recipes()) {
    SCOPED_TRACE(text);
    const Recipe recipe = Recipe::parse(text);
    // A gradient in high precision needs a product that reads stride 0, which ATen's may copy.
    if (recipe.resolve(Flavour::kOCP).dw.high_precision()) continue;
    const at::Tensor x = leaf(at::randn({4, 12, 160}), at::kBFloat16),
                     w = leaf(at::randn({32, 160}), at::kBFloat16);
    Recorder recorder;
    const at::Tensor y = float8_linear(x, w, std::nullopt, recipe);
    torch::autograd::backward({y}, {at::ones({}, at::kBFloat16).expand({4, 12, 32})});
    auto found = copies(recorder.calls());
    found.erase("aten::ones");  // the test's own gradient
    found.erase("aten::fill_");
    EXPECT_EQ(found, (std::map<std::string, int>{}));
  }
}

// The recorder itself must see what it is there to forbid.
TEST(Dispatch, TheRecorderSeesAnAddedCopy) {
  const at::Tensor x = at::randn({48, 160}), w = at::randn({32, 160});
  const auto seen = [&](auto&& spoil) {
    Recorder recorder;
    float8_linear(spoil(x), w, std::nullopt, Recipe{});
    return copies(recorder.calls());
  };
  EXPECT_EQ(seen([](const at::Tensor& t) { return t; }), (std::map<std::string, int>{}));
  EXPECT_TRUE(seen([](const at::Tensor& t) { return t.clone(); }).count("aten::clone"));
  EXPECT_TRUE(
      seen([](const at::Tensor& t) { return t.t().contiguous().t(); }).count("aten::clone"));
  EXPECT_TRUE(
      seen([](const at::Tensor& t) { return t.t().contiguous().t(); }).count("aten::copy_"));
  EXPECT_TRUE(
      seen([](const at::Tensor& t) { return t.to(at::kBFloat16); }).count("aten::_to_copy"));
  EXPECT_TRUE(seen([](const at::Tensor& t) { return t * 2; }).count("aten::mul"));
  // Leading dimensions that no view can flatten are copied once, as documented.
  Recorder recorder;
  float8_linear(at::randn({6, 4, 160}).transpose(0, 1), w, std::nullopt, Recipe{});
  EXPECT_EQ(recorder.calls().at("aten::clone"), 1);
}

}  // namespace
}  // namespace octavo
