#include "octavo/kernels/counter.h"

namespace octavo::kernels {

Counters& counters() {
  static Counters instance;
  return instance;
}

}  // namespace octavo::kernels
