#include <cstdio>

int main() {
  std::puts("octavo");
  return 0;
}
