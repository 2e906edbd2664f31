#include "octavo/recipe/recipe.h"

#include <c10/util/Exception.h>

namespace octavo {
namespace {

LayoutSpec fp32_scaled(Format format, Granularity granularity, ScaleRounding rounding) {
  return {.format = format, .granularity = granularity, .scale_rounding = rounding};
}

/// The flavour the elements take; MX exists in OCP formats only, whatever the device speaks.
Flavour flavour_for(const Recipe& recipe, Flavour native) {
  if (recipe.name == RecipeName::kMxfp8) {
    TORCH_CHECK(
        recipe.flavour != FlavourChoice::kFNUZ,
        "recipe: mxfp8 exists in OCP formats only, got flavour=fnuz; leave the flavour out, "
        "or use rowwise(flavour=fnuz)");
    return Flavour::kOCP;
  }
  if (recipe.flavour == FlavourChoice::kAuto) return native;
  return recipe.flavour == FlavourChoice::kFNUZ ? Flavour::kFNUZ : Flavour::kOCP;
}

}  // namespace

LinearSpec Recipe::resolve(Flavour native) const {
  const Flavour resolved = flavour_for(*this, native);
  const Format e4m3 = format_of(Element::kE4M3, resolved);
  const Format e5m2 = format_of(Element::kE5M2, resolved);
  bool dw_high_precision = gw_high_precision;
  LinearSpec spec;
  switch (name) {
    case RecipeName::kTensorwise: {
      const Granularity whole = Granularity::tensorwise();
      const LayoutSpec operand = fp32_scaled(e4m3, whole, ScaleRounding::kNone);
      const LayoutSpec gradient = fp32_scaled(e5m2, whole, ScaleRounding::kNone);
      spec = {{operand, operand}, {gradient, operand}, {gradient, operand}};
      break;
    }
    case RecipeName::kRowwise: {
      const LayoutSpec row = fp32_scaled(e4m3, Granularity::rowwise(), ScaleRounding::kPowerOfTwo);
      spec = {{row, row}, {row, row}, {row, row}};
      break;
    }
    case RecipeName::kRowwiseWithGwHp: {
      const LayoutSpec row = fp32_scaled(e4m3, Granularity::rowwise(), ScaleRounding::kPowerOfTwo);
      const LayoutSpec whole =
          fp32_scaled(e4m3, Granularity::tensorwise(), ScaleRounding::kPowerOfTwo);
      spec = {{row, row}, {row, whole}, {}};
      dw_high_precision = true;
      break;
    }
    case RecipeName::kBlockwise: {
      const LayoutSpec row = fp32_scaled(e4m3, Granularity::block_1x128(), ScaleRounding::kNone);
      const LayoutSpec tile = fp32_scaled(e4m3, Granularity::block_128x128(), ScaleRounding::kNone);
      spec = {{row, tile}, {row, tile}, {row, row}};
      break;
    }
    case RecipeName::kMxfp8: {
      const LayoutSpec block = {.format = e4m3,
                                .granularity = Granularity::mx_1x32(),
                                .scale_rounding = ScaleRounding::kNone,
                                .mx_rounding = mx_rounding};
      spec = {{block, block}, {block, block}, {block, block}};
      break;
    }
  }
  if (dw_high_precision) spec.dw = {};
  if (name != RecipeName::kBlockwise && name != RecipeName::kMxfp8) {
    const bool all = fast_accumulation == FastAccumulation::kAll;
    spec.forward.fast_accumulation = fast_accumulation != FastAccumulation::kNone;
    spec.dx.fast_accumulation = all;
    spec.dw.fast_accumulation = all && !spec.dw.high_precision();
  }
  return spec;
}

LinearSpec Recipe::resolve_experts(Flavour native) const {
  TORCH_CHECK(name != RecipeName::kTensorwise,
              "recipe: tensorwise has one scale for the tokens of all experts, which grouped "
              "products do not take; use rowwise for experts");
  Recipe experts = *this;
  if (fast_accumulation == FastAccumulation::kDefault) {
    experts.fast_accumulation = FastAccumulation::kAll;
  }
  return experts.resolve(native);
}

}  // namespace octavo
