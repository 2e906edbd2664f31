#include "octavo/gemm/pad.h"

#include <ATen/Functions.h>

namespace octavo {

at::Tensor padded_data(const at::Tensor& data, std::int64_t rows, std::int64_t columns) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(data.const_data_ptr()) % 16 == 0 && data.stride(0) % 16 == 0;
  if (data.size(0) == rows && data.size(1) == columns && aligned) return data;
  const at::Tensor out = at::zeros({rows, columns}, data.options().dtype(at::kByte));
  out.narrow(0, 0, data.size(0)).narrow(1, 0, data.size(1)).copy_(data.view(at::kByte));
  return out.view(data.scalar_type());
}

at::Tensor row_scales(const ScaledTensor& matrix, std::int64_t rows) {
  if (matrix.granularity == Granularity::tensorwise()) {
    return matrix.scale.expand({rows, 1}).contiguous();
  }
  if (rows == matrix.rows()) return matrix.scale;
  const at::Tensor out = at::zeros({rows, 1}, matrix.scale.options());
  out.narrow(0, 0, matrix.rows()).copy_(matrix.scale);
  return out;
}

}  // namespace octavo
