#include "octavo/kernels/gpu/adamw.h"

#include <limits>

#include "operands.h"
#include "tests/kernels/adamw_reference.h"

namespace octavo::gpu::testing {
namespace {

using kernels::AdamwOptions;
using kernels::AdamwTypes;
using kernels::testing::AdamwCase;
using kernels::testing::Elements;

// A case's tensors on the device, `misalignment` bytes off a 16-byte boundary.
class OnDevice {
 public:
  OnDevice(const AdamwCase& c, std::size_t misalignment)
      : case_(c),
        parameter_(c.parameter.bytes.size(), misalignment),
        master_(c.master.bytes.size(), misalignment),
        gradient_(c.gradient.bytes.size(), misalignment),
        exp_avg_(c.exp_avg.bytes.size(), misalignment),
        exp_avg_sq_(c.exp_avg_sq.bytes.size(), misalignment),
        step_(sizeof(float)),
        amax_(sizeof(float)) {
    parameter_.upload(c.parameter.bytes.data());
    master_.upload(c.master.bytes.data());
    gradient_.upload(c.gradient.bytes.data());
    exp_avg_.upload(c.exp_avg.bytes.data());
    exp_avg_sq_.upload(c.exp_avg_sq.bytes.data());
    step_.upload(&c.step);
    amax_.zero();
  }
  kernels::AdamwTensor tensor() {
    kernels::AdamwTensor t = case_.tensor();
    t.parameter = parameter_.get();
    t.master = case_.types.has_master ? master_.get<float>() : nullptr;
    t.gradient = gradient_.get();
    t.exp_avg = exp_avg_.get();
    t.exp_avg_sq = exp_avg_sq_.get();
    t.step = step_.get<float>();
    t.amax = amax_.get<float>();
    return t;
  }
  float amax() const { return amax_.download<float>()[0]; }
  AdamwCase result() {
    case_.parameter.bytes = parameter_.download<std::uint8_t>();
    case_.master.bytes = master_.download<std::uint8_t>();
    case_.exp_avg.bytes = exp_avg_.download<std::uint8_t>();
    case_.exp_avg_sq.bytes = exp_avg_sq_.download<std::uint8_t>();
    return case_;
  }

 private:
  AdamwCase case_;
  DeviceBuffer parameter_, master_, gradient_, exp_avg_, exp_avg_sq_, step_, amax_;
};

float amax_of_elements(const Elements& elements) {
  float amax = 0.0f;
  for (std::size_t i = 0; i < elements.size(); ++i) amax = amax_of(amax, elements.at(i));
  return amax;
}

// Steps all cases in one call and compares each with the scalar loop; every third finds no amax.
void expect_steps(const std::vector<AdamwCase>& cases, const AdamwOptions& options, double lr,
                  float clip, std::size_t misalignment) {
  std::vector<std::unique_ptr<OnDevice>> device;
  std::vector<kernels::AdamwTensor> table;
  for (const AdamwCase& c : cases) {
    device.push_back(std::make_unique<OnDevice>(c, misalignment));
    table.push_back(device.back()->tensor());
    if (table.size() % 3 == 0) table.back().amax = nullptr;
  }
  DeviceBuffer lr_buffer(sizeof(double)), clip_buffer(sizeof(float));
  lr_buffer.upload(&lr);
  clip_buffer.upload(&clip);
  adamw({.tensors = table.data(),
         .count = static_cast<std::int64_t>(table.size()),
         .types = cases[0].types,
         .options = options,
         .lr = lr_buffer.get<double>(),
         .clip = clip_buffer.get<float>()},
        nullptr);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    AdamwCase want = cases[i];
    want.reference(options, lr, clip);
    ASSERT_EQ(device[i]->result().difference(want), "")
        << "tensor " << i << " of " << cases[i].parameter.size() << " elements, "
        << kernels::testing::describe(cases[i].types) << ", misaligned by " << misalignment;
    const float amax = i % 3 == 2 ? 0.0f : amax_of_elements(want.parameter);
    ASSERT_TRUE(same(device[i]->amax(), amax))
        << device[i]->amax() << ", expected " << amax << ": tensor " << i << " of "
        << cases[i].parameter.size() << " elements, " << kernels::testing::describe(cases[i].types);
  }
}

TEST(GpuAdamw, EqualsAScalarLoop) {
  OCTAVO_REQUIRE_GPU();
  unsigned seed = 0;
  for (const AdamwTypes& types : kernels::testing::all_adamw_types()) {
    for (std::size_t misalignment : {0, 4}) {
      std::vector<AdamwCase> cases;
      for (std::size_t size : {1, 7, 8, 9, 2047, 2048, 16384, 16385, 50000}) {
        ++seed;
        cases.emplace_back(types, size, /*finite=*/seed % 2 == 0, seed);
        cases.back().step = static_cast<float>(seed % 3 ? seed : 12345);
        cases.back().weight_decay = seed % 4 ? 0.1 : 0.0;
      }
      expect_steps(cases, {}, 1e-3 * (seed % 5), seed % 2 ? 1.0f : 0.37f, misalignment);
    }
  }
}

// The fast path's division and square root over their whole range and at its ends: equal to the
// scalar loop's, which are correctly rounded.
TEST(GpuAdamw, EveryMagnitude) {
  OCTAVO_REQUIRE_GPU();
  const AdamwTypes types = {kernels::HighPrecision::kFloat32, kernels::HighPrecision::kFloat32,
                            kernels::HighPrecision::kFloat32, false};
  std::vector<AdamwCase> cases;
  for (int exponent = -126; exponent < 120; exponent += 2) {
    AdamwCase c(types, 8192, true, static_cast<unsigned>(exponent + 200));
    for (std::size_t i = 0; i < c.gradient.size(); ++i) {
      // The gradient near what the moments are of, so that all keep the magnitude.
      const float scale = std::ldexp(1.0f, i % 2 == 0 ? exponent : exponent / 2);
      c.exp_avg.set(i, c.exp_avg.at(i) * scale);
      c.gradient.set(i, 0.0f);
      c.exp_avg_sq.set(i, c.exp_avg_sq.at(i) * std::ldexp(1.0f, i / 2 % 2 == 0 ? exponent : 0));
    }
    cases.push_back(c);
  }
  for (double eps : {1e-8, 1e-30, 4.0}) {
    for (double beta2 : {0.95, 0.99999999}) {
      expect_steps(cases, {.beta2 = beta2, .eps = eps}, 1e-3, 1.0f, 0);
    }
  }
}

TEST(GpuAdamw, AClipOfNaNTakesNoStep) {
  OCTAVO_REQUIRE_GPU();
  for (const AdamwTypes& types : kernels::testing::all_adamw_types()) {
    // The amax is of the parameter as it stays.
    expect_steps({AdamwCase(types, 5000, true, 1), AdamwCase(types, 16391, false, 2)}, {}, 1e-3,
                 std::nanf(""), 0);
  }
}

// One element of each is far above the others, wherever it lies: first, last, at a vector's, a
// thread's and a block's edge.
TEST(GpuAdamw, TheAmaxIsFoundWhereverItLies) {
  OCTAVO_REQUIRE_GPU();
  for (const AdamwTypes& types : kernels::testing::all_adamw_types()) {
    std::vector<AdamwCase> cases;
    for (std::size_t size : {1, 8, 13, 2049, 16384, 40001}) {
      for (std::size_t at : {std::size_t{0}, size / 3, size - 1}) {
        AdamwCase c(types, size, true, static_cast<unsigned>(size + at));
        c.parameter.set(at, -77.0f);
        if (types.has_master) c.master.set(at, -77.0f);
        cases.push_back(c);
      }
    }
    expect_steps(cases, {}, 1e-3, 1.0f, 0);
    expect_steps(cases, {}, 1e-3, 1.0f, 4);
  }
}

TEST(GpuAdamw, AnAmaxExtendsWhatItsMemoryHolds) {
  OCTAVO_REQUIRE_GPU();
  const AdamwTypes types = {kernels::HighPrecision::kBFloat16, kernels::HighPrecision::kBFloat16,
                            kernels::HighPrecision::kBFloat16, false};
  OnDevice device(AdamwCase(types, 100, true, 1), 0);
  DeviceBuffer amax(sizeof(float)), lr(sizeof(double)), clip(sizeof(float));
  // More than any parameter.
  const float before = std::numeric_limits<float>::infinity(), one = 1.0f;
  const double rate = 1e-3;
  amax.upload(&before);
  lr.upload(&rate);
  clip.upload(&one);
  kernels::AdamwTensor tensor = device.tensor();
  tensor.amax = amax.get<float>();
  adamw({.tensors = &tensor,
         .count = 1,
         .types = types,
         .options = {},
         .lr = lr.get<double>(),
         .clip = clip.get<float>()},
        nullptr);
  EXPECT_EQ(amax.download<float>()[0], before);
}

TEST(GpuAdamw, AnyNumberOfTensors) {
  OCTAVO_REQUIRE_GPU();
  const AdamwTypes types = {kernels::HighPrecision::kBFloat16, kernels::HighPrecision::kBFloat16,
                            kernels::HighPrecision::kFloat32, true};
  for (int count : {1, kAdamwTensorsPerLaunch, kAdamwTensorsPerLaunch + 1, 150}) {
    std::vector<AdamwCase> cases;
    for (int i = 0; i < count; ++i) {
      // Empty ones between them too; one long tensor, whose blocks a search must find.
      const std::size_t size = i % 7 == 3 ? 0 : i == 20 ? 300000 : 100 + i;
      cases.emplace_back(types, size, true, i);
    }
    expect_steps(cases, {.beta1 = 0.3}, 1e-2, 1.0f, 0);
  }
  adamw({}, nullptr);
  check(cudaGetLastError());
}

// Two billion elements: indices do not fit 32 bits.
TEST(GpuAdamw, ManyElements) {
  OCTAVO_REQUIRE_GPU();
  const std::int64_t size = (std::int64_t{1} << 31) + 24;
  const auto bytes = static_cast<std::size_t>(2 * size);
  void* base[4] = {};
  for (void*& p : base) {
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      for (void* q : base) (void)cudaFree(q);
      GTEST_SKIP() << "needs 16 GiB of GPU memory";
    }
    check(cudaMemset(p, 0, bytes));
  }
  const AdamwTypes types = {kernels::HighPrecision::kBFloat16, kernels::HighPrecision::kBFloat16,
                            kernels::HighPrecision::kBFloat16, false};
  AdamwCase last(types, 24, true, 1);
  last.exp_avg = last.exp_avg_sq = Elements(types.moments, std::vector<float>(24, 0.0f));
  const auto at_end = [&](int i) { return static_cast<char*>(base[i]) + bytes - 48; };
  check(cudaMemcpy(at_end(0), last.parameter.bytes.data(), 48, cudaMemcpyHostToDevice));
  check(cudaMemcpy(at_end(1), last.gradient.bytes.data(), 48, cudaMemcpyHostToDevice));
  DeviceBuffer step(4), lr(8), clip(4);
  const float one = 1.0f;
  const double rate = 1e-2;
  step.upload(&one);
  clip.upload(&one);
  lr.upload(&rate);
  kernels::AdamwTensor tensor{.parameter = base[0],
                              .gradient = base[1],
                              .exp_avg = base[2],
                              .exp_avg_sq = base[3],
                              .step = step.get<float>(),
                              .size = size,
                              .weight_decay = 0.1};
  adamw({.tensors = &tensor,
         .count = 1,
         .types = types,
         .lr = lr.get<double>(),
         .clip = clip.get<float>()},
        nullptr);
  AdamwCase want = last;
  want.reference({}, rate, 1.0f);
  check(cudaMemcpy(last.parameter.bytes.data(), at_end(0), 48, cudaMemcpyDeviceToHost));
  EXPECT_EQ(last.parameter.difference(want.parameter), -1);
  for (void* p : base) (void)cudaFree(p);
}

}  // namespace
}  // namespace octavo::gpu::testing
