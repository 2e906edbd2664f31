#include "octavo/train/product_run.h"

namespace octavo::train {

ScalingFamily family_of(const ProductSpec& product) {
  const Granularity &a = product.a->granularity, &b = product.b->granularity;
  if (a.mx) return ScalingFamily::kMx;
  if (a.block_columns > 1 || b.block_columns > 1) return ScalingFamily::kBlockwise;
  if (a == Granularity::tensorwise() && b == Granularity::tensorwise())
    return ScalingFamily::kTensorwise;
  return ScalingFamily::kRowwise;
}

std::string ProductRun::text() const {
  return how + (backend.empty() ? "" : " (" + backend + " backend)");
}

ProductRun product_run(const ProductSpec& product, const Architecture& architecture,
                       ProductKind kind) {
  if (product.high_precision()) return {.how = "high precision"};
  const auto table = kind == ProductKind::kDense ? &native_product : &native_grouped_product;
  const NativeProduct native =
      table(architecture, family_of(product), flavour_of(product.a->format));
  ProductRun run{.how = is_native(native.backend) ? "native" : "emulated",
                 .needs_probe = native.needs_probe};
  if (native.backend != Backend::kEmulated) run.backend = std::string(name(native.backend));
  return run;
}

std::string products_text(const LinearSpec& spec, const Architecture& architecture,
                          ProductKind kind) {
  const std::string y = product_run(spec.forward, architecture, kind).text();
  const std::string dx = product_run(spec.dx, architecture, kind).text();
  const std::string dw = product_run(spec.dw, architecture, kind).text();
  if (y == dx && dx == dw) return y;
  return "y " + y + ", dx " + dx + ", dw " + dw;
}

std::string fast_accumulation_text(const LinearSpec& spec) {
  if (!spec.forward.fast_accumulation) return "none";
  return spec.dx.fast_accumulation ? "all" : "forward";
}

}  // namespace octavo::train
