#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octavo {

/// The candidate a misspelt `word` most likely meant: the one with the fewest single-letter
/// insertions, deletions, replacements and swaps of neighbours (optimal string alignment), the
/// first of equals. Empty when even that one differs in more than half of its letters, so that an
/// unrelated word gets no misleading suggestion. Case counts.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// " (did you mean 'X'?)", or an empty string where nothing is near. For error messages.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// "a, b, c".
std::string join(const std::vector<std::string>& words);

}  // namespace octavo
