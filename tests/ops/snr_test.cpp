// How much of the signal FP8 keeps: outputs and gradients of one linear layer and of a SwiGLU FFN
// against fp64, normal inputs, fixed shapes and seeds, for every recipe, flavour and MX rounding.
// The bounds pin the formats' precision; that the products themselves are right to 100 dB is
// tests/gemm/scaled_mm_test.cpp's.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "octavo/ops/float8_linear.h"

namespace octavo {
namespace {

// 10 log10(signal / noise); NaN if either tensor holds one, so compare as snr >= bound.
double snr_db(const at::Tensor& actual, const at::Tensor& exact) {
  const at::Tensor reference = exact.to(at::kDouble);
  const double signal = reference.square().sum().item<double>();
  const double noise = (actual.to(at::kDouble) - reference).square().sum().item<double>();
  if (noise == 0.0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(signal / noise);
}

at::Tensor normal(at::IntArrayRef sizes, std::int64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

struct Named {
  std::string name;
  at::Tensor tensor;
};

// Inputs and weights as leaves of `dtype`.
std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& values, at::ScalarType dtype) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& value : values) {
    out.push_back(value.to(dtype, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true));
  }
  return out;
}

using Layer = at::Tensor (*)(const std::vector<at::Tensor>& inputs, const Recipe* recipe);

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const Recipe* recipe) {
  if (recipe == nullptr) return at::matmul(x, w.t());
  return float8_linear(x, w, std::nullopt, *recipe);
}

at::Tensor one_linear(const std::vector<at::Tensor>& inputs, const Recipe* recipe) {
  return linear(inputs[0], inputs[1], recipe);
}

at::Tensor swiglu_ffn(const std::vector<at::Tensor>& inputs, const Recipe* recipe) {
  const at::Tensor gate = linear(inputs[0], inputs[1], recipe);
  const at::Tensor up = linear(inputs[0], inputs[2], recipe);
  return linear(at::silu(gate) * up, inputs[3], recipe);
}

struct Problem {
  Layer layer;
  std::vector<std::string> names;
  std::vector<at::Tensor> values;
  at::Tensor dy;
};

// The output and the gradient of every input, named.
std::vector<Named> evaluate(const Problem& problem, at::ScalarType dtype, const Recipe* recipe) {
  const auto inputs = leaves(problem.values, dtype);
  const at::Tensor y = problem.layer(inputs, recipe);
  y.backward(problem.dy.to(dtype));
  std::vector<Named> out{{"y", y.detach()}};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    out.push_back({"d" + problem.names[i], inputs[i].grad()});
  }
  return out;
}

// No product of two e4m3 operands of normal numbers keeps more; see bounds().
constexpr double kMostOfFp8 = 31.5;

struct Bounds {
  std::string recipe;
  double linear_output, linear_gradient, ffn_output, ffn_gradient;
};

// Bounds in dB. One e4m3 operand of normal numbers keeps 31.5 dB and a product of two 28.5; e5m2
// has one bit less, so 25.5 and 24.5. Three products in a row and their gradients lose about 5 dB
// more. MX FLOOR clips the largest value of many blocks.
std::vector<Bounds> bounds() {
  std::vector<Bounds> out;
  const auto add = [&](const std::string& recipe) {
    const bool e5m2 = recipe.starts_with("tensorwise");
    const bool floor = recipe.find("floor") != std::string::npos;
    const double ffn = floor ? 21.0 : 22.0;
    out.push_back({recipe, 27.0, e5m2 ? 23.0 : 27.0, ffn, e5m2 ? 19.0 : ffn});
  };
  for (const char* name : {"tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"}) {
    add(std::string(name) + "(flavour=ocp)");
    add(std::string(name) + "(flavour=fnuz)");
  }
  for (const char* rounding : {"rceil", "floor", "ceil", "even"}) {
    add("mxfp8(mx_rounding=" + std::string(rounding) + ")");
  }
  for (const std::string& name : recipe_names()) {
    if (name != "rowwise_with_gw_hp") add(name + "(gw_high_precision=true)");
  }
  return out;
}

void check_snr(const Problem& problem, const std::vector<Named>& exact,
               const std::string& recipe_text, double output_bound, double gradient_bound) {
  const Recipe recipe = Recipe::parse(recipe_text);
  const auto fp8 = evaluate(problem, at::kFloat, &recipe);
  std::string line;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double snr = snr_db(fp8[i].tensor, exact[i].tensor);
    const double bound = i == 0 ? output_bound : gradient_bound;
    EXPECT_TRUE(snr >= bound) << recipe_text << ": " << exact[i].name << " has " << snr
                              << " dB, expected at least " << bound;
    // The other side: what ran in high precision by mistake would have over 100 dB.
    const bool high_precision = problem.layer == one_linear && exact[i].name == "dw" &&
                                recipe.resolve(Flavour::kOCP).dw.high_precision();
    EXPECT_TRUE(high_precision ? snr >= 100.0 : snr <= kMostOfFp8)
        << recipe_text << ": " << exact[i].name << " has " << snr << " dB, expected "
        << (high_precision ? "a product in high precision" : "FP8");
    char text[64];
    std::snprintf(text, sizeof text, "  %s %.1f", exact[i].name.c_str(), snr);
    line += text;
  }
  std::printf("%-36s%s\n", recipe_text.c_str(), line.c_str());
}

Problem linear_problem() {
  const std::int64_t M = 384, K = 512, N = 320;
  return {one_linear,
          {"x", "w"},
          {normal({M, K}, 1), normal({N, K}, 2) / std::sqrt(double(K))},
          normal({M, N}, 3)};
}

Problem ffn_problem() {
  const std::int64_t M = 384, D = 256, F = 640;
  const double up = 1.0 / std::sqrt(double(D)), down = 1.0 / std::sqrt(double(F));
  return {
      swiglu_ffn,
      {"x", "w_gate", "w_up", "w_down"},
      {normal({M, D}, 1), normal({F, D}, 2) * up, normal({F, D}, 3) * up, normal({D, F}, 4) * down},
      normal({M, D}, 5)};
}

TEST(Snr, OneLinear) {
  const Problem problem = linear_problem();
  const auto exact = evaluate(problem, at::kDouble, nullptr);
  for (const Bounds& c : bounds()) {
    check_snr(problem, exact, c.recipe, c.linear_output, c.linear_gradient);
  }
}

TEST(Snr, SwiGluFfn) {
  const Problem problem = ffn_problem();
  const auto exact = evaluate(problem, at::kDouble, nullptr);
  for (const Bounds& c : bounds())
    check_snr(problem, exact, c.recipe, c.ffn_output, c.ffn_gradient);
}

// The numbers of a table's cell: "28.6, 24.6" or "23.6, 20.5 to 21.9".
std::vector<double> numbers_in(const std::string& cell) {
  std::vector<double> out;
  const char* at = cell.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const double value = std::strtod(at, &end);
    if (end != at) out.push_back(value);
    at = end == at ? at + 1 : end;
  }
  return out;
}

// The recipes that a row of the document's table speaks of: "rowwise" is both flavours.
std::vector<std::string> recipes_of_row(const std::string& title) {
  const std::string name = title.substr(0, title.find(','));
  if (name != "mxfp8") return {name + "(flavour=ocp)", name + "(flavour=fnuz)"};
  std::vector<std::string> out;
  for (const auto& [word, field] : {std::pair{"RCEIL", "rceil"}, std::pair{" CEIL", "ceil"},
                                    std::pair{"EVEN", "even"}, std::pair{"FLOOR", "floor"}}) {
    if (title.find(word) == std::string::npos) continue;
    out.push_back("mxfp8(mx_rounding=" + std::string(field) + ")");
  }
  return out;
}

std::vector<double> snr_of(const Problem& problem, const std::vector<Named>& exact,
                           const std::string& recipe_text) {
  const Recipe recipe = Recipe::parse(recipe_text);
  const auto fp8 = evaluate(problem, at::kFloat, &recipe);
  std::vector<double> out;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    out.push_back(snr_db(fp8[i].tensor, exact[i].tensor));
  }
  return out;
}

// What a table says beside what was measured. A product in high precision has the noise of fp32
// sums, whose order is the machine's: a few dB. Otherwise the flavours differ by 0.1 dB, and the
// table rounds to one decimal.
void expect_near(const std::string& what, const std::vector<double>& table,
                 const std::vector<double>& measured) {
  ASSERT_EQ(table.size(), measured.size()) << what;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double tolerance = table[i] > 100.0 ? 5.0 : 0.15;
    EXPECT_TRUE(std::abs(table[i] - measured[i]) <= tolerance)
        << what << ": docs/numerics.md says " << table[i] << " dB, measured " << measured[i];
  }
}

// docs/numerics.md, "What FP8 keeps".
TEST(Snr, TheDocumentHasTheseFigures) {
  const Problem one = linear_problem(), ffn = ffn_problem();
  const auto exact_one = evaluate(one, at::kDouble, nullptr);
  const auto exact_ffn = evaluate(ffn, at::kDouble, nullptr);
  std::ifstream document(OCTAVO_SOURCE_DIR "/docs/numerics.md");
  int checked = 0;
  bool inside = false;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("## ")) inside = line == "## What FP8 keeps";
    if (!inside || !line.starts_with("| ") || line.starts_with("| recipe")) continue;
    std::istringstream cells(line.substr(2));
    std::string title, of_linear, of_ffn;
    std::getline(cells, title, '|');
    std::getline(cells, of_linear, '|');
    std::getline(cells, of_ffn, '|');
    title.pop_back();
    for (const std::string& recipe : recipes_of_row(title)) {
      expect_near(recipe + " linear", numbers_in(of_linear), snr_of(one, exact_one, recipe));
      const std::vector<double> all = snr_of(ffn, exact_ffn, recipe);
      const auto [lowest, highest] = std::minmax_element(all.begin() + 1, all.end());
      expect_near(recipe + " FFN", numbers_in(of_ffn), {all[0], *lowest, *highest});
      ++checked;
    }
  }
  EXPECT_EQ(checked, 12);  // four recipes in two flavours, four MX roundings
}

}  // namespace
}  // namespace octavo
