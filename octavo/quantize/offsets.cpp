#include "octavo/quantize/offsets.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

namespace octavo {
namespace {

bool checks_on_gpu() {
  static const bool asked = [] {
    const char* value = std::getenv("OCTAVO_CHECK_OFFSETS");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return asked;
}

void check_values(const char* argument, const at::Tensor& offs, std::int64_t rows) {
  const std::int32_t* end = offs.const_data_ptr<std::int32_t>();
  std::int32_t previous = 0;
  for (std::int64_t g = 0; g < offs.size(0); ++g) {
    TORCH_CHECK(end[g] >= previous, argument, ": expected END offsets that never decrease, from 0 ",
                "on, got ", end[g], " after ", previous, " at group ", g,
                "; take the running sum of the groups' sizes");
    previous = end[g];
  }
  TORCH_CHECK(previous <= rows, argument, ": expected END offsets up to the ", rows,
              " rows there are, got ", previous, " at the last group; take the running sum of the ",
              "groups' sizes");
}

}  // namespace

void check_offsets_type(const char* argument, const at::Tensor& offs) {
  TORCH_CHECK(offs.scalar_type() == at::kInt, argument, ": expected int32, got ",
              offs.scalar_type(), "; convert them with ", argument, ".to(torch.int32)");
  TORCH_CHECK(offs.dim() == 1, argument, ": expected (E), one END offset for each group, got ",
              offs.dim(), " dimensions; take the running sum of the groups' sizes");
}

void check_offsets(const char* argument, const at::Tensor& offs, std::int64_t experts,
                   std::int64_t rows, c10::Device device) {
  check_offsets_type(argument, offs);
  TORCH_CHECK(offs.device() == device, argument, ": expected them on ", device, ", got ",
              offs.device(), "; move them there");
  TORCH_CHECK(offs.size(0) >= 1 && (experts < 0 || offs.size(0) == experts), argument,
              ": expected one END offset for each of ",
              experts < 0 ? std::string("one or more") : std::to_string(experts),
              " groups, got sizes ", offs.sizes(), "; empty groups have one too");
  TORCH_CHECK(offs.is_contiguous(), argument, ": expected contiguous offsets, got strides ",
              offs.strides(), "; call contiguous()");
  if (device.is_cpu()) return check_values(argument, offs, rows);
  if (checks_on_gpu()) check_values(argument, offs.cpu(), rows);
}

std::vector<Group> groups_of(const at::Tensor& offs, std::int64_t alignment) {
  const std::int32_t* end = offs.const_data_ptr<std::int32_t>();
  std::vector<Group> groups(static_cast<std::size_t>(offs.size(0)));
  Group previous;
  for (Group& group : groups) {
    group.begin = previous.end;
    group.end = *end++;
    group.begin_transposed = previous.end_transposed;
    group.end_transposed =
        group.begin_transposed + (group.size() + alignment - 1) / alignment * alignment;
    previous = group;
  }
  return groups;
}

}  // namespace octavo
