#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

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

// Milliseconds of each plan, the median over rounds in which every plan runs twice and is timed the
// second time. The first plan runs for a while before: under a power limit the clocks of a card at
// work are not those of one that waited, and the order of the algorithms changes with them.
std::vector<float> timed(const Product& product, const std::vector<Plan>& plans, void* workspace,
                         cudaStream_t stream) {
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
    if (times.size() < kRounds) {
      medians.push_back(std::numeric_limits<float>::infinity());
      continue;
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    medians.push_back(times[kRounds / 2]);
  }
  return medians;
}

at::Tensor scratch(const PlanKey& key, std::int64_t bytes) {
  return empty_on(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(key.device)), {bytes},
                  at::kByte);
}

Plan fastest(Product& product, const Pointers& pointers, const std::vector<Plan>& plans,
             cudaStream_t stream) {
  const PlanKey& key = product.key();
  // A product that accumulates is timed on memory of its own.
  const std::int64_t bytes =
      key.m * key.n * c10::elementSize(static_cast<at::ScalarType>(key.out_dtype));
  at::Tensor own;
  if (key.accumulate) {
    own = scratch(key, bytes);
    check(cudaMemsetAsync(own.data_ptr(), 0, bytes, stream), "MemsetAsync");
    Pointers elsewhere = pointers;
    elsewhere.out = own.data_ptr();
    product.set_pointers(elsewhere);
  }
  const at::Tensor workspace = scratch(key, kMaxWorkspace);
  std::vector<float> times = timed(product, plans, workspace.data_ptr(), stream);
  // A workspace is allocated and cleared at each call, which takes the host about this long.
  constexpr float kWorkspaceMs = 0.006f;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].workspace != 0) times[i] += kWorkspaceMs;
  }
  product.set_pointers(pointers);
  const auto best = std::min_element(times.begin(), times.end());
  TORCH_CHECK(*best < std::numeric_limits<float>::infinity(), "cuBLASLt: none of its ",
              plans.size(), " proposed algorithms ran; use backend=emulated");
  return plans[best - times.begin()];
}

}  // namespace

Plan choose(Product& product, const Pointers& pointers, cudaStream_t stream) {
  const PlanKey& key = product.key();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "StreamIsCapturing");
  const bool measures = cublaslt_tuning() == Tuning::kMeasure;
  TORCH_CHECK(
      capture == cudaStreamCaptureStatusNone || !measures, "scaled_mm: the product ", key.m, " x ",
      key.n, " x ", key.k,
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
  return measures && plans.size() > 1 ? fastest(product, pointers, plans, stream) : plans.front();
}

}  // namespace octavo::cublaslt
