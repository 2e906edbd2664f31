// What scaled_mm refuses: each message names the argument, what was expected, what came and the
// repair.

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "octavo/gemm/scaled_mm.h"
#include "tests/gemm/operands.h"

namespace octavo {
namespace {

using testing::random_operand;

ScaledTensor operand(const Granularity& granularity, Format format = Format::kE4M3FN,
                     std::int64_t rows = 33, std::int64_t columns = 48) {
  return random_operand(rows, columns, format, granularity, 1);
}

void expect_error(const std::function<void()>& body, std::initializer_list<const char*> parts) {
  try {
    body();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    for (const char* part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
    }
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << *parts.begin() << "\"";
}

TEST(ScaledMmErrors, SizesThatDoNotMatch) {
  expect_error(
      [] { scaled_mm(operand(kRow), operand(kRow, Format::kE4M3FN, 32, 47), {}); },
      {"a and b: expected equal numbers of columns (K)", "[33, 48]", "[32, 47]", "K-contiguous"});
}

TEST(ScaledMmErrors, E5M2TimesE5M2) {
  for (Backend backend : {Backend::kAuto, Backend::kReference, Backend::kCublasLt}) {
    expect_error(
        [=] {
          scaled_mm(operand(kRow, Format::kE5M2), operand(kRow, Format::kE5M2),
                    {.backend = backend});
        },
        {"a and b: expected at least one e4m3 operand, got e5m2 and e5m2", "quantise one as e4m3"});
  }
  expect_error(
      [] { scaled_mm(operand(kRow, Format::kE5M2FNUZ), operand(kRow, Format::kE5M2FNUZ), {}); },
      {"got e5m2fnuz and e5m2fnuz", "quantise one as e4m3"});
}

TEST(ScaledMmErrors, MixedFlavours) {
  expect_error(
      [] { scaled_mm(operand(kRow, Format::kE4M3FN), operand(kRow, Format::kE4M3FNUZ), {}); },
      {"a and b: expected formats of one flavour", "e4m3fn (ocp)", "e4m3fnuz (fnuz)",
       "quantise both with the same flavour"});
}

TEST(ScaledMmErrors, Fp32ScaleWhereMxReadsCodes) {
  auto a = operand(kMx);
  a.scale = at::full(a.scale.sizes(), 1.5f);
  expect_error([&] { scaled_mm(a, operand(kMx), {}); },
               {"a.scale: expected dtype Float8_e8m0fnu for granularity mx1x32, got Float",
                "never read as one"});
}

TEST(ScaledMmErrors, CodesWhereFp32IsRead) {
  auto b = operand(kRow);
  b.scale = at::ones(b.scale.sizes()).to(at::kFloat8_e8m0fnu);
  expect_error([&] { scaled_mm(operand(kRow), b, {}); },
               {"b.scale: expected dtype Float for granularity rowwise, got Float8_e8m0fnu",
                "only granularity mx1x32 reads e8m0 codes"});
}

TEST(ScaledMmErrors, MxOfFnuz) {
  auto a = operand(kMx);
  a.data = a.data.view(at::kByte).view(at::kFloat8_e4m3fnuz);
  expect_error([&] { scaled_mm(a, a, {}); },
               {"a.data: expected an OCP format", "got e4m3fnuz", "use rowwise"});
}

TEST(ScaledMmErrors, UnsupportedPairs) {
  const Granularity all[] = {Granularity::tensorwise(),
                             kRow,
                             Granularity::colwise(),
                             Granularity::block_1x128(),
                             Granularity::block_128x1(),
                             Granularity::block_128x128(),
                             kMx};
  int refused = 0;
  for (const Granularity& a : all) {
    for (const Granularity& b : all) {
      try {
        scaled_mm(operand(a), operand(b), {});
      } catch (const c10::Error&) {
        ++refused;
        expect_error([&] { scaled_mm(operand(a), operand(b), {}); },
                     {"a and b: expected granularities", to_string(a).c_str(), to_string(b).c_str(),
                      "quantise both operands by the same recipe"});
      }
    }
  }
  EXPECT_EQ(refused, 49 - 8);  // 2x2 of tensorwise and rowwise, three of 128s, mx x mx
}

TEST(ScaledMmErrors, OutDtype) {
  for (at::ScalarType dtype : {at::kDouble, at::kInt, at::kFloat8_e4m3fn}) {
    expect_error([=] { scaled_mm(operand(kRow), operand(kRow), {.out_dtype = dtype}); },
                 {"out_dtype: expected float32, bfloat16 or float16, got"});
  }
}

TEST(ScaledMmErrors, Bias) {
  const auto with = [](const at::Tensor& bias) {
    return [=] { scaled_mm(operand(kRow), operand(kRow), {.bias = bias}); };
  };
  expect_error(with(at::zeros({32})), {"bias: expected sizes [33]", "got [32]", "out_features"});
  expect_error(with(at::zeros({33, 1})), {"bias: expected sizes [33]", "got [33, 1]"});
  expect_error(with(at::zeros({33}, at::kDouble)),
               {"bias: expected dtype float32, bfloat16 or float16, got Double", "convert"});
  expect_error(with(at::zeros({33}, at::kMeta)), {"bias: expected device cpu", "got meta"});
}

TEST(ScaledMmErrors, DataThatIsNotFp8) {
  auto a = operand(kRow);
  a.data = at::zeros({33, 48});
  expect_error([&] { scaled_mm(a, operand(kRow), {}); },
               {"a.data: expected an FP8 dtype", "got Float", "quantize_operand()"});
  a.data = at::Tensor();
  expect_error([&] { scaled_mm(a, operand(kRow), {}); },
               {"a.data: expected an FP8 tensor, got none", "not asked for"});
}

TEST(ScaledMmErrors, Rank) {
  auto a = operand(kRow);
  a.data = a.data.view({3, 11, 48});
  expect_error([&] { scaled_mm(a, operand(kRow), {}); },
               {"a.data", "expected 2 dimensions", "[3, 11, 48]", "flatten"});
  auto b = operand(kRow);
  b.logical_sizes = {33};
  expect_error([&] { scaled_mm(operand(kRow), b, {}); }, {"b.data and logical_sizes", "[33]"});
}

TEST(ScaledMmErrors, LogicalSizes) {
  auto a = operand(kRow);
  a.logical_sizes = {34, 48};
  expect_error([&] { scaled_mm(a, operand(kRow), {}); },
               {"a.data: expected at least logical_sizes [34, 48], got [33, 48]"});
}

TEST(ScaledMmErrors, TransposedView) {
  auto a = operand(kRow, Format::kE4M3FN, 48, 48);
  a.data = a.data.t();
  expect_error([&] { scaled_mm(a, operand(kRow), {}); },
               {"a.data: expected contiguous columns", "[1, 48]", "transposed layout"});
}

TEST(ScaledMmErrors, Scale) {
  const auto with = [](Granularity granularity, const at::Tensor& scale) {
    auto b = operand(granularity);
    b.scale = scale;
    return [=] { scaled_mm(operand(granularity), b, {}); };
  };
  expect_error(with(kRow, at::ones({32, 1})),
               {"b.scale: expected sizes [33, 1] for rowwise data of logical sizes [33, 48]",
                "got [32, 1]", "quantize_operand()"});
  expect_error(with(kRow, at::ones({33})), {"expected sizes [33, 1]", "got [33]"});
  expect_error(with(Granularity::tensorwise(), at::ones({})), {"expected sizes [1, 1]", "got []"});
  expect_error(with(kRow, at::ones({33, 1}, at::kBFloat16)),
               {"b.scale: expected dtype Float", "got BFloat16"});
  expect_error(with(kRow, at::Tensor()), {"b.scale: expected a tensor, got none"});
  expect_error(with(kRow, at::ones({33, 1}, at::kMeta)),
               {"b.scale: expected device cpu as data, got meta", "together"});
  expect_error(with(kRow, at::ones({66, 1}).slice(0, 0, 66, 2)),
               {"b.scale: expected row-major strides", "got strides [2, 1]"});
}

TEST(ScaledMmErrors, ScaleStrides) {
  auto a = operand(Granularity::block_1x128(), Format::kE4M3FN, 33, 300);
  const auto b = operand(Granularity::block_128x128(), Format::kE4M3FN, 200, 300);
  scaled_mm(a, b, {});
  a.scale = a.scale.contiguous();
  expect_error([&] { scaled_mm(a, b, {}); },
               {"a.scale: expected strides (1, rows of scales)", "got strides [3, 1]"});
  a.scale_layout = ScaleLayout::kPlain;
  expect_error([&] { scaled_mm(a, b, {}); },
               {"a.scale_layout: expected the layout", "1x128", "quantize_operand()"});
  auto packed = b;
  packed.scale = packed.scale.contiguous();
  expect_error([&] { scaled_mm(packed, b, {}); },
               {"a.scale: expected strides (columns of scales padded to a multiple of 4, 1)"});
  auto tiled = operand(kMx);
  tiled.scale_layout = ScaleLayout::kTiled128x4;
  expect_error([&] { scaled_mm(tiled, tiled, {}); },
               {"a.scale: expected a layout other than 128x4 tiles"});
}

TEST(ScaledMmErrors, Devices) {
  auto b = operand(kRow);
  b.data = at::empty(b.data.sizes(), b.data.options().device(at::kMeta));
  b.scale = at::empty(b.scale.sizes(), b.scale.options().device(at::kMeta));
  expect_error([&] { scaled_mm(operand(kRow), b, {}); },
               {"b: expected device cpu as a, got meta", "move one of them"});
  expect_error([&] { scaled_mm(b, b, {}); },
               {"a: expected a CPU or CUDA tensor, got device meta", "move the operands there"});
}

TEST(ScaledMmErrors, BackendThatIsNotOnTheCpu) {
  for (Backend backend :
       {Backend::kCublasLt, Backend::kOctavo, Backend::kAten, Backend::kEmulated}) {
    expect_error([=] { scaled_mm(operand(kRow), operand(kRow), {.backend = backend}); },
                 {"backend: expected auto or reference on the CPU, got",
                  "the reference backend is the one that runs on the CPU"});
  }
  expect_error([] { scaled_mm(operand(kRow), operand(kRow), {.backend = Backend::kCublasLt}); },
               {"got cublaslt"});
}

}  // namespace
}  // namespace octavo
