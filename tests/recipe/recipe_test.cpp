#include "octavo/recipe/recipe.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

namespace octavo {
namespace {

std::string error_of(const std::string& text) {
  try {
    Recipe::parse(text);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void expect_error(const std::string& text, const std::vector<std::string>& parts) {
  const std::string message = error_of(text);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "'" << text << "': expected '" << part << "' in '" << message << "'";
  }
}

LayoutSpec scaled(Format format, Granularity granularity, ScaleRounding rounding) {
  return {.format = format, .granularity = granularity, .scale_rounding = rounding};
}

std::vector<std::optional<LayoutSpec>> layouts(const LinearSpec& spec) {
  return {spec.forward.a, spec.forward.b, spec.dx.a, spec.dx.b, spec.dw.a, spec.dw.b};
}

std::array<bool, 3> fast(const LinearSpec& spec) {
  return {spec.forward.fast_accumulation, spec.dx.fast_accumulation, spec.dw.fast_accumulation};
}

// The table of docs/recipes.md, spelt out.

TEST(RecipeResolve, Tensorwise) {
  const LayoutSpec x = scaled(Format::kE4M3FN, Granularity::tensorwise(), ScaleRounding::kNone);
  const LayoutSpec dy = scaled(Format::kE5M2, Granularity::tensorwise(), ScaleRounding::kNone);
  const LinearSpec spec = Recipe::parse("tensorwise").resolve(Flavour::kOCP);
  EXPECT_EQ(layouts(spec), (std::vector<std::optional<LayoutSpec>>{x, x, dy, x, dy, x}));
}

TEST(RecipeResolve, Rowwise) {
  const LayoutSpec row =
      scaled(Format::kE4M3FN, Granularity::rowwise(), ScaleRounding::kPowerOfTwo);
  const LinearSpec spec = Recipe::parse("rowwise").resolve(Flavour::kOCP);
  EXPECT_EQ(layouts(spec), (std::vector<std::optional<LayoutSpec>>(6, row)));
  EXPECT_EQ(Recipe{}, Recipe::parse("rowwise")) << "rowwise is the default";
}

TEST(RecipeResolve, RowwiseWithGwHp) {
  const LayoutSpec row =
      scaled(Format::kE4M3FN, Granularity::rowwise(), ScaleRounding::kPowerOfTwo);
  const LayoutSpec whole =
      scaled(Format::kE4M3FN, Granularity::tensorwise(), ScaleRounding::kPowerOfTwo);
  const LinearSpec spec = Recipe::parse("rowwise_with_gw_hp").resolve(Flavour::kOCP);
  EXPECT_EQ(layouts(spec), (std::vector<std::optional<LayoutSpec>>{row, row, row, whole,
                                                                   std::nullopt, std::nullopt}));
  EXPECT_TRUE(spec.dw.high_precision());
  EXPECT_FALSE(spec.dx.high_precision());
}

TEST(RecipeResolve, Blockwise) {
  const LayoutSpec row = scaled(Format::kE4M3FN, Granularity::block_1x128(), ScaleRounding::kNone);
  const LayoutSpec tile =
      scaled(Format::kE4M3FN, Granularity::block_128x128(), ScaleRounding::kNone);
  const LinearSpec spec = Recipe::parse("blockwise").resolve(Flavour::kOCP);
  EXPECT_EQ(layouts(spec),
            (std::vector<std::optional<LayoutSpec>>{row, tile, row, tile, row, row}));
  EXPECT_EQ(fast(spec), (std::array<bool, 3>{false, false, false}));
}

// field_cases, Module and autograd: "MXFP8 default: e4m3 everywhere, the gradient too".
TEST(RecipeResolve, Mxfp8DefaultIsE4m3Everywhere) {
  const LayoutSpec block = {.format = Format::kE4M3FN,
                            .granularity = Granularity::mx_1x32(),
                            .scale_rounding = ScaleRounding::kNone,
                            .mx_rounding = MxRounding::kRceil};
  const LinearSpec spec = Recipe::parse("mxfp8").resolve(Flavour::kOCP);
  EXPECT_EQ(layouts(spec), (std::vector<std::optional<LayoutSpec>>(6, block)));
  EXPECT_EQ(fast(spec), (std::array<bool, 3>{false, false, false}));
}

TEST(RecipeResolve, MxRoundingReachesEveryLayout) {
  const std::map<std::string, MxRounding> modes = {{"floor", MxRounding::kFloor},
                                                   {"ceil", MxRounding::kCeil},
                                                   {"even", MxRounding::kEven},
                                                   {"rceil", MxRounding::kRceil}};
  for (const auto& [mode, rounding] : modes) {
    const Recipe recipe = Recipe::parse("mxfp8(mx_rounding=" + mode + ")");
    for (const auto& layout : layouts(recipe.resolve(Flavour::kOCP))) {
      EXPECT_EQ(layout->mx_rounding, rounding) << mode;
    }
  }
}

TEST(RecipeResolve, GwHighPrecisionDropsOnlyTheDwProduct) {
  for (const std::string name : {"tensorwise", "rowwise", "blockwise", "mxfp8"}) {
    const LinearSpec plain = Recipe::parse(name).resolve(Flavour::kOCP);
    const LinearSpec spec = Recipe::parse(name + "(gw_high_precision=true)").resolve(Flavour::kOCP);
    EXPECT_TRUE(spec.dw.high_precision()) << name;
    EXPECT_FALSE(spec.dw.b.has_value()) << name;
    EXPECT_EQ(spec.forward.a, plain.forward.a) << name;
    EXPECT_EQ(spec.dx.b, plain.dx.b) << name;
  }
}

TEST(RecipeResolve, FastAccumulation) {
  const auto of = [](const std::string& text) {
    return fast(Recipe::parse(text).resolve(Flavour::kOCP));
  };
  EXPECT_EQ(of("rowwise"), (std::array<bool, 3>{true, false, false}));
  EXPECT_EQ(of("rowwise(fast_accumulation=none)"), (std::array<bool, 3>{false, false, false}));
  EXPECT_EQ(of("rowwise(fast_accumulation=all)"), (std::array<bool, 3>{true, true, true}));
  EXPECT_EQ(of("rowwise_with_gw_hp(fast_accumulation=all)"),
            (std::array<bool, 3>{true, true, false}));
}

TEST(RecipeResolve, ExpertsAccumulateFastInAllProductsUnlessTold) {
  const auto of = [](const std::string& text) {
    return fast(Recipe::parse(text).resolve_experts(Flavour::kOCP));
  };
  EXPECT_EQ(of("rowwise"), (std::array<bool, 3>{true, true, true}));
  EXPECT_EQ(of("rowwise(fast_accumulation=forward)"), (std::array<bool, 3>{true, false, false}));
  EXPECT_EQ(of("rowwise(fast_accumulation=none)"), (std::array<bool, 3>{false, false, false}));
  EXPECT_EQ(of("rowwise_with_gw_hp"), (std::array<bool, 3>{true, true, false}));
  EXPECT_EQ(of("blockwise"), (std::array<bool, 3>{false, false, false}));
  for (const std::string name : {"rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"}) {
    const Recipe recipe = Recipe::parse(name);
    EXPECT_EQ(layouts(recipe.resolve_experts(Flavour::kOCP)),
              layouts(recipe.resolve(Flavour::kOCP)));
  }
  try {
    Recipe::parse("tensorwise").resolve_experts(Flavour::kOCP);
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("use rowwise for experts"), std::string::npos);
  }
}

TEST(RecipeResolve, FlavourFollowsTheDeviceOrTheField) {
  for (const std::string name : {"tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise"}) {
    for (const Flavour native : {Flavour::kOCP, Flavour::kFNUZ}) {
      const auto check = [&](const std::string& text, Flavour expected) {
        for (const auto& layout : layouts(Recipe::parse(text).resolve(native))) {
          if (!layout) continue;
          EXPECT_EQ(flavour_of(layout->format), expected) << text;
        }
      };
      check(name, native);
      check(name + "(flavour=auto)", native);
      check(name + "(flavour=ocp)", Flavour::kOCP);
      check(name + "(flavour=fnuz)", Flavour::kFNUZ);
    }
  }
}

TEST(RecipeResolve, Mxfp8KeepsOcpOnFnuzDevicesAndRefusesFnuz) {
  for (const auto& layout : layouts(Recipe::parse("mxfp8").resolve(Flavour::kFNUZ))) {
    EXPECT_EQ(layout->format, Format::kE4M3FN);
  }
  Recipe recipe;
  recipe.name = RecipeName::kMxfp8;
  recipe.flavour = FlavourChoice::kFNUZ;
  EXPECT_THROW(recipe.resolve(Flavour::kFNUZ), c10::Error);
  expect_error("mxfp8(flavour=fnuz)", {"mxfp8", "fnuz", "rowwise"});
  expect_error("mxfp8_cublas(flavour=fnuz)", {"rowwise(flavour=fnuz)"});
}

TEST(RecipeText, CanonicalStringsSurviveARoundTrip) {
  int count = 0;
  for (int name = 0; name < 5; ++name) {
    for (int flavour = 0; flavour < 3; ++flavour) {
      for (int fast_accumulation = 0; fast_accumulation < 3; ++fast_accumulation) {
        for (int mx_rounding = 0; mx_rounding < 4; ++mx_rounding) {
          for (const bool gw_high_precision : {false, true}) {
            const Recipe recipe = {.name = RecipeName(name),
                                   .flavour = FlavourChoice(flavour),
                                   .fast_accumulation = FastAccumulation(fast_accumulation),
                                   .mx_rounding = MxRounding(mx_rounding),
                                   .gw_high_precision = gw_high_precision};
            if (recipe.name == RecipeName::kMxfp8 && recipe.flavour == FlavourChoice::kFNUZ)
              continue;
            const Recipe again = Recipe::parse(recipe.to_string());
            EXPECT_EQ(again.to_string(), recipe.to_string());
            EXPECT_EQ(again, recipe);
            const LinearSpec a = recipe.resolve(Flavour::kOCP), b = again.resolve(Flavour::kOCP);
            EXPECT_EQ(layouts(a), layouts(b)) << recipe.to_string();
            EXPECT_EQ(fast(a), fast(b)) << recipe.to_string();
            ++count;
          }
        }
      }
    }
  }
  EXPECT_EQ(count, 5 * 3 * 3 * 4 * 2 - 3 * 4 * 2);
}

TEST(RecipeText, CanonicalForms) {
  for (const std::string& name : recipe_names()) EXPECT_EQ(Recipe::parse(name).to_string(), name);
  const std::map<std::string, std::string> forms = {
      {"mxfp8(mx_rounding=floor)", "mxfp8(mx_rounding=floor)"},
      {"tensorwise(fast_accumulation=all,flavour=fnuz)",
       "tensorwise(flavour=fnuz,fast_accumulation=all)"},
      {" rowwise ( flavour = fnuz , gw_high_precision = true ) ",
       "rowwise(flavour=fnuz,gw_high_precision=true)"},
      {"rowwise()", "rowwise"},
      {"rowwise(flavour=auto,gw_high_precision=false)", "rowwise"},
      {"mxfp8_cublas(mx_rounding=even)", "mxfp8(mx_rounding=even)"},
  };
  for (const auto& [text, canonical] : forms) {
    EXPECT_EQ(Recipe::parse(text).to_string(), canonical) << text;
  }
}

TEST(RecipeText, EveryAlias) {
  // Spelt out again on purpose: the numerics an alias has where it comes from.
  const std::map<std::string, std::string> aliases = {
      {"fp8_rowwise", "rowwise"},
      {"mxfp8_cublas", "mxfp8(mx_rounding=floor)"},
      {"mxfp8_cublas_rceil", "mxfp8"},
      {"mxfp8_emulated", "mxfp8(mx_rounding=floor)"},
      {"mxfp8_emulated_rceil", "mxfp8"},
      {"mxfp8_rceil", "mxfp8"},
      {"mxfp8_rceil_wgrad_with_hp", "mxfp8(gw_high_precision=true)"},
      {"mxfp8_wgrad_with_hp", "mxfp8(gw_high_precision=true)"},
  };
  std::map<std::string, std::string> listed;
  for (const auto& [alias, canonical] : recipe_aliases()) listed[alias] = canonical;
  EXPECT_EQ(listed, aliases);
  for (const auto& [alias, canonical] : aliases) {
    EXPECT_EQ(Recipe::parse(alias).to_string(), canonical);
    EXPECT_EQ(Recipe::parse(alias), Recipe::parse(canonical));
  }
  EXPECT_EQ(Recipe::parse("mxfp8_cublas").mx_rounding, MxRounding::kFloor);
  EXPECT_EQ(Recipe::parse("mxfp8_cublas_rceil").mx_rounding, MxRounding::kRceil);
  EXPECT_EQ(Recipe::parse("mxfp8_rceil").mx_rounding, MxRounding::kRceil);
  EXPECT_TRUE(Recipe::parse("mxfp8_rceil_wgrad_with_hp").gw_high_precision);
}

TEST(RecipeText, ErrorsNameTheRepair) {
  expect_error("rowise", {"rowise", "did you mean 'rowwise'", "tensorwise", "blockwise", "mxfp8"});
  expect_error("mxfp8_cublass", {"did you mean 'mxfp8_cublas'"});
  expect_error("", {"unknown name ''", "rowwise"});
  expect_error("Rowwise", {"did you mean 'rowwise'"});
  expect_error("rowwise(flavor=ocp)", {"unknown field 'flavor'", "did you mean 'flavour'"});
  expect_error("rowwise(flavour=opc)", {"flavour is one of auto, ocp, fnuz", "did you mean 'ocp'"});
  expect_error("rowwise(flavour)", {"expected field=value", "flavour"});
  expect_error("rowwise(flavour=ocp", {"expected ')'"});
  expect_error("rowwise(flavour=ocp,)", {"expected field=value"});
  expect_error("rowwise(flavour=ocp,flavour=ocp)", {"flavour is given twice"});
  expect_error("rowwise(gw_high_precision=yes)",
               {"gw_high_precision is one of false, true", "'yes'"});
  expect_error("mxfp8(mx_rounding=flor)", {"floor, ceil, even, rceil", "did you mean 'floor'"});
  expect_error("rowwise(mx_rounding=floor)", {"rowwise has no field mx_rounding"});
  expect_error("blockwise(fast_accumulation=all)", {"blockwise has no field fast_accumulation"});
  expect_error("mxfp8(fast_accumulation=all)", {"mxfp8 has no field fast_accumulation"});
  expect_error("rowwise_with_gw_hp(gw_high_precision=false)",
               {"rowwise_with_gw_hp has no field gw_high_precision"});
}

}  // namespace
}  // namespace octavo
