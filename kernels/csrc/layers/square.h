// Squares of numbers that are turned over in registers: rows become columns.
#pragma once
#include "core/simd.h"

namespace SPARSE_ISA {
namespace {

typedef uint8_t v16 __attribute__((vector_size(16)));

// low: of two vectors' first halves, by turns; high: of their second halves.
inline v16 low(v16 a, v16 b) {
  return __builtin_shuffle(a, b, v16{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
inline v16 high(v16 a, v16 b) {
  return __builtin_shuffle(a, b, v16{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
#if SPARSE_LANES == 16
inline vf low(vf a, vf b) {
  return __builtin_shuffle(a, b, vi{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
inline vf high(vf a, vf b) {
  return __builtin_shuffle(a, b, vi{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
#elif SPARSE_LANES == 8
inline vf low(vf a, vf b) { return __builtin_shuffle(a, b, vi{0, 8, 1, 9, 2, 10, 3, 11}); }
inline vf high(vf a, vf b) { return __builtin_shuffle(a, b, vi{4, 12, 5, 13, 6, 14, 7, 15}); }
#else
inline vf low(vf a, vf b) { return __builtin_shuffle(a, b, vi{0, 4, 1, 5}); }
inline vf high(vf a, vf b) { return __builtin_shuffle(a, b, vi{2, 6, 3, 7}); }
#endif

// A square of T whose rows are vectors. Rows [sample][column] become [column][sample]: each round of `low` and `high`
// moves one bit of the row's number to the column's.
template <typename T, typename V> struct SquareOf {
  static constexpr int64_t SIDE = sizeof(V) / sizeof(T);
  alignas(64) T rows[SIDE][SIDE];

  void turn() {
    V v[SIDE], next[SIDE];
    memcpy(v, rows, sizeof rows);
    for (int64_t round = 1; round < SIDE; round *= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < SIDE / 2; i++) {
        next[2 * i] = low(v[i], v[i + SIDE / 2]);
        next[2 * i + 1] = high(v[i], v[i + SIDE / 2]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < SIDE; i++) v[i] = next[i];
    }
    memcpy(rows, v, sizeof rows);
  }
};

}  // namespace
}  // namespace SPARSE_ISA
