#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "octavo/gemm/cublaslt.h"
#include "octavo/gemm/cublaslt_product.h"
#include "octavo/quantize/allocate.h"

namespace octavo::cublaslt {
namespace {

class Event {
 public:
  Event() { check(cudaEventCreate(&handle_), "EventCreate"); }
  ~Event() { cudaEventDestroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(handle_, stream), "EventRecord"); }
  void wait() { check(cudaEventSynchronize(handle_), "EventSynchronize"); }
  float since(const Event& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.handle_, handle_), "EventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

constexpr float kNever = std::numeric_limits<float>::infinity();

float median(std::vector<float> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// Milliseconds of each plan, the median over rounds in which every plan runs twice and is timed the
// second time; kNever where it does not run. The first plan runs for a while before: the clocks of
// a GPU at work are not those of one that waited.
std::vector<float> timed_in_turn(const Product& product, const std::vector<Plan>& plans,
                                 void* workspace, cudaStream_t stream) {
  constexpr float kSettleMs = 60;
  constexpr int kRounds = 5, kBatch = 8;
  float spent = 0;
  while (spent < kSettleMs) {
    Event begin, end;
    begin.record(stream);
    for (int i = 0; i < kBatch; ++i) {
      if (product.run(plans[0], workspace, stream) != CUBLAS_STATUS_SUCCESS) spent = kSettleMs;
    }
    end.record(stream);
    end.wait();
    spent += std::max(end.since(begin), 1.0f);
  }
  std::vector<std::vector<float>> samples(plans.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      Event begin, end;
      bool works = product.run(plans[i], workspace, stream) == CUBLAS_STATUS_SUCCESS;
      begin.record(stream);
      works = works && product.run(plans[i], workspace, stream) == CUBLAS_STATUS_SUCCESS;
      end.record(stream);
      end.wait();
      if (works) samples[i].push_back(end.since(begin));
    }
  }
  std::vector<float> medians;
  for (std::vector<float>& times : samples) {
    medians.push_back(times.size() < kRounds ? kNever : median(times));
  }
  return medians;
}

// Of long products the plans that come near the fastest are timed again, each at work by itself for
// long enough that the GPU's clock follows its power: a training step keeps a GPU at its power
// limit, where the fastest plan is the one that takes the least energy. In turn all plans run at
// one clock, and on an H200 that order picks plans that are up to 5% slower in a step
// (docs/experiments/2026-11-30-power.md). `times` becomes theirs; kNever for the others.
void time_at_work(const Product& product, const std::vector<Plan>& plans, void* workspace,
                  cudaStream_t stream, std::vector<float>& times) {
  constexpr float kLongMs = 0.1f, kNear = 1.08f, kPhaseMs = 30;
  constexpr int kRounds = 3;
  const float fastest = *std::min_element(times.begin(), times.end());
  if (fastest < kLongMs || fastest == kNever) return;
  std::vector<std::vector<float>> samples(plans.size());
  const int runs = std::max(1, static_cast<int>(kPhaseMs / fastest));
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      // The first is cuBLASLt's own choice.
      if (times[i] > kNear * fastest && (i > 0 || times[i] == kNever)) continue;
      Event begin, end;
      for (int run = 0; run < 2 * runs; ++run) {
        if (run == runs) begin.record(stream);
        check(product.run(plans[i], workspace, stream), "Matmul");
      }
      end.record(stream);
      end.wait();
      samples[i].push_back(end.since(begin) / static_cast<float>(runs));
    }
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    times[i] = samples[i].empty() ? kNever : median(samples[i]);
  }
}

at::Tensor scratch(const PlanKey& key, std::int64_t bytes) {
  return empty_on(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(key.device)), {bytes},
                  at::kByte);
}

std::int64_t out_bytes(const PlanKey& key) {
  return key.m * key.n *
         static_cast<std::int64_t>(c10::elementSize(static_cast<at::ScalarType>(key.out_dtype)));
}

Plan fastest(Product& product, const Pointers& pointers, const std::vector<Plan>& plans,
             cudaStream_t stream) {
  const PlanKey& key = product.key();
  // A product that accumulates is timed on memory of its own.
  const std::int64_t bytes = out_bytes(key);
  at::Tensor own;
  if (key.accumulate) {
    own = scratch(key, bytes);
    check(cudaMemsetAsync(own.data_ptr(), 0, bytes, stream), "MemsetAsync");
    Pointers elsewhere = pointers;
    elsewhere.out = own.data_ptr();
    product.set_pointers(elsewhere);
  }
  const at::Tensor workspace = scratch(key, kMaxWorkspace);
  std::vector<float> times = timed_in_turn(product, plans, workspace.data_ptr(), stream);
  time_at_work(product, plans, workspace.data_ptr(), stream, times);
  // A workspace is allocated and cleared at each call, which takes the host about this long.
  constexpr float kWorkspaceMs = 0.006f;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].workspace != 0) times[i] += kWorkspaceMs;
  }
  product.set_pointers(pointers);
  const auto best = std::min_element(times.begin(), times.end());
  TORCH_CHECK(*best < kNever, "cuBLASLt: none of its ", plans.size(),
              " proposed algorithms ran; use backend=emulated");
  return plans[best - times.begin()];
}

// The memory to time a product on that accumulates into this much would be the most that a step
// ever has.
bool accumulates_too_much(const PlanKey& key) {
  constexpr std::int64_t kMuchMemory = std::int64_t{512} << 20;
  return key.accumulate && out_bytes(key) >= kMuchMemory;
}

std::optional<Plan> plan_without_accumulation(PlanKey key) {
  key.accumulate = 0;
  return find_plan(key);
}

Plan choose(Product& product, const Pointers& pointers, cudaStream_t stream) {
  const PlanKey& key = product.key();
  const bool measures = cublaslt_tuning() == Tuning::kMeasure;
  if (measures && accumulates_too_much(key)) {
    if (const auto twin = plan_without_accumulation(key)) {
      product.set_fast_accumulation(twin->fast_accumulation);
      if (product.takes(*twin)) return *twin;
    }
  }
  TORCH_CHECK(
      !measures || !is_capturing(stream), "cuBLASLt: the product ", key.m, " x ", key.n, " x ",
      key.k,
      " has no chosen algorithm yet and measuring is impossible while a CUDA graph is being "
      "captured; run one step before the capture");
  product.set_fast_accumulation(key.fast_accumulation != 0);
  std::vector<Plan> plans = product.proposals();
  if (plans.empty() && key.fast_accumulation) {
    // Fast accumulation is a permission: cuBLASLt 13.0 lacks it for rowwise products of long K and
    // few tiles, and has full accumulation for them.
    product.set_fast_accumulation(false);
    plans = product.proposals();
  }
  TORCH_CHECK(!plans.empty(), "cuBLASLt: no algorithm for out ", key.m, " x ", key.n, ", K ", key.k,
              ", scale modes ", key.a_scale, " and ", key.b_scale,
              " on this GPU; use backend=emulated");
  return measures && plans.size() > 1 && !accumulates_too_much(key)
             ? fastest(product, pointers, plans, stream)
             : plans.front();
}

}  // namespace

void multiply(const PlanKey& key, const Strides& strides, const Pointers& pointers,
              cudaStream_t stream) {
  Product& product = product_of(key, strides);
  product.set_pointers(pointers);
  std::optional<Plan> plan = find_plan(key);
  if (!plan) {
    plan = choose(product, pointers, stream);
    keep_plan(key, *plan);
  }
  product.set_fast_accumulation(plan->fast_accumulation);
  at::Tensor workspace;
  void* workspace_data = nullptr;
  if (plan->workspace != 0) {
    workspace = scratch(key, static_cast<std::int64_t>(plan->workspace));
    workspace_data = workspace.data_ptr();
  }
  check(product.run(*plan, workspace_data, stream), "Matmul");
}

}  // namespace octavo::cublaslt
