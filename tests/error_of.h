#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>

namespace octavo::testing {

/// The message of the c10::Error that action() throws, one line; "no error" where it throws none.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  return "no error";
}

}  // namespace octavo::testing
