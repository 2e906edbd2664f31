#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

namespace octavo::train {

/// Bytes of the tensors made on a device since the meter was, by LibTorch's allocators: those that
/// are still there, and the most there were at once. On the CPU it sees what its own thread
/// allocates; on a GPU everything, and making one forgets the allocator's peak.
class MemoryMeter {
 public:
  explicit MemoryMeter(c10::Device device);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  std::int64_t live() const;
  std::int64_t peak() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octavo::train
