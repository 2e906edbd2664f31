// docs/recipes.md says what the code does: its tables are compared with Recipe.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>

#include "octavo/recipe/nearest.h"
#include "octavo/recipe/recipe.h"

namespace octavo {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::size_t begin = line.find('|');
  while (true) {
    const std::size_t end = line.find('|', begin + 1);
    if (end == std::string::npos) return cells;
    std::string cell = line.substr(begin + 1, end - begin - 1);
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(cell);
    begin = end;
  }
}

// The rows of the table whose header begins with `first_header`.
std::vector<std::vector<std::string>> table(const std::string& first_header) {
  std::ifstream file(OCTAVO_SOURCE_DIR "/docs/recipes.md");
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("| " + first_header + " |", 0) == 0) {
      inside = true;
    } else if (inside && line.rfind("|", 0) != 0) {
      break;
    } else if (inside && line.rfind("|---", 0) != 0) {
      rows.push_back(cells_of(line));
    }
  }
  return rows;
}

std::string described(const std::optional<LayoutSpec>& layout) {
  if (!layout) return "high precision";
  std::string text =
      std::string(name(element_of(layout->format))) + " " + to_string(layout->granularity);
  if (layout->granularity.mx) return text + ", " + std::string(name(layout->mx_rounding));
  if (layout->scale_rounding == ScaleRounding::kPowerOfTwo) text += ", power of two";
  return text;
}

TEST(RecipeDocs, TheTableIsWhatResolveGives) {
  std::vector<std::vector<std::string>> want;
  for (const std::string& recipe : recipe_names()) {
    const LinearSpec spec = Recipe::parse(recipe).resolve(Flavour::kOCP);
    want.push_back({recipe, described(spec.forward.a), described(spec.forward.b),
                    described(spec.dx.a), described(spec.dx.b), described(spec.dw.a),
                    described(spec.dw.b)});
  }
  EXPECT_EQ(table("recipe"), want);
}

TEST(RecipeDocs, TheAliases) {
  std::vector<std::vector<std::string>> want;
  for (const auto& [alias, canonical] : recipe_aliases()) want.push_back({alias, canonical});
  EXPECT_EQ(table("alias"), want);
}

TEST(RecipeDocs, TheFields) {
  const auto rows = table("field");
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    const std::string &field = row[0], &values = row[1], &standard = row[2], &recipes = row[3];
    std::vector<std::string> having;
    for (const std::string& name : recipe_names()) {
      std::size_t begin = 0;
      int accepted = 0;
      while (begin < values.size()) {  // every value the table lists is one the field has
        const std::size_t end = std::min(values.find(", ", begin), values.size());
        const std::string value = values.substr(begin, end - begin);
        begin = end + 2;
        try {
          const Recipe recipe = Recipe::parse(name + "(" + field + "=" + value + ")");
          EXPECT_EQ(recipe.to_string() == name, value == standard) << recipe.to_string();
          ++accepted;
        } catch (const c10::Error&) {
          EXPECT_TRUE(name == "mxfp8" || accepted == 0) << name << " " << field << " " << value;
        }
      }
      if (accepted > 0) having.push_back(name);
    }
    EXPECT_EQ(recipes == "all" ? join(recipe_names()) : recipes, join(having)) << field;
    try {
      Recipe::parse("mxfp8(" + field + "=nonsense)");
      FAIL();
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      if (message.find("has no field") != std::string::npos) continue;
      EXPECT_NE(message.find(field + " is one of " + values), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace octavo
