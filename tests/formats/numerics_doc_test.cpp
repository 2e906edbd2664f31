// docs/numerics.md contains the tables that the code prints, line by line.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "octavo/formats/scaling.h"
#include "tests/formats/reference.h"

namespace octavo {
namespace {

std::string document() {
  std::ifstream file(OCTAVO_SOURCE_DIR "/docs/numerics.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_lines(const std::string& table) {
  const std::string text = document();
  std::istringstream lines(table);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_NE(text.find("\n" + line + "\n"), std::string::npos) << "missing: " << line;
  }
  EXPECT_GT(count, 3);
}

template <typename... Args>
std::string print(const char* format, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, format, args...);
  return line;
}

std::string number(float x) { return print("%.9g", static_cast<double>(x)); }
std::string power(float x) { return print("2^%d", std::ilogb(x)); }

TEST(NumericsDocument, Formats) {
  std::string table;
  for (Format format : kAllFormats) {
    const FormatLimits f = limits(format);
    table += print("| %s | %d, %d | %d | %s | 0x%02X | 2^%d | 2^%d | 0x%02X | %s | %s |\n",
                   std::string(name(format)).c_str(), f.exponent_bits, f.mantissa_bits, f.bias,
                   number(f.max).c_str(), f.max_byte, 1 - f.bias, 1 - f.bias - f.mantissa_bits,
                   f.nan_byte, f.has_infinity ? "yes" : "no", f.has_negative_zero ? "yes" : "no");
  }
  expect_lines(table);
}

TEST(NumericsDocument, Fp32Scales) {
  std::string table;
  for (float amax : {0.0f, 1e-36f, 1.0f, 1.75f, std::nextafter(1.75f, 2.0f), 6.0f,
                     std::numeric_limits<float>::max()}) {
    const float plain = inv_scale_of(amax, Format::kE4M3FN, ScaleRounding::kNone);
    const float rounded = inv_scale_of(amax, Format::kE4M3FN, ScaleRounding::kPowerOfTwo);
    const std::string shown = amax == 1e-36f ? "1e-36" : number(amax);
    table += "| " + shown + " | " + number(plain) + " | " + number(scale_of(plain)) + " | " +
             power(rounded) + " | " + power(scale_of(rounded)) + " |\n";
  }
  expect_lines(table);
}

TEST(NumericsDocument, MxCodes) {
  std::string table;
  for (float amax :
       {0.0f, 256.0f, 448.0f, std::nextafter(448.0f, kInf), std::nextafter(480.0f, 0.0f), 496.0f,
        960.0f, std::numeric_limits<float>::max(), kInf, std::numeric_limits<float>::quiet_NaN()}) {
    table += "| " + number(amax);
    for (MxRounding rounding :
         {MxRounding::kFloor, MxRounding::kCeil, MxRounding::kEven, MxRounding::kRceil}) {
      table += print(" | %d", mx_code_of(amax, Format::kE4M3FN, rounding));
    }
    table += " |\n";
  }
  expect_lines(table);
}

}  // namespace
}  // namespace octavo
