// A bfloat16 in memory: the upper half of a float.
#pragma once
#include <stdint.h>

namespace sparsefl {

struct bf16 {
  uint16_t bits;
};

}  // namespace sparsefl
