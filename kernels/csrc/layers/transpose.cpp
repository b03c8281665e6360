// y [columns][rows] = x [rows][columns]: squares are turned over in registers, and every line of y is written whole.
#include "core/ops.h"
#include "core/parallel.h"
#include "layers/square.h"

namespace SPARSE_ISA {
namespace {

using Square = SquareOf<float, vf>;
constexpr int64_t SIDE = Square::SIDE;

void square(const float* x, int64_t rows, int64_t columns, int64_t row, int64_t column, float* y) {
  Square s;
  const int64_t high = rows - row < SIDE ? rows - row : SIDE, wide = columns - column < SIDE ? columns - column : SIDE;
  const float* from = x + row * columns + column;
  for (int64_t i = 0; i < high; i++) store(s.rows[i], load_until(from + i * columns, from + i * columns + wide));
  s.turn();
  float* to = y + column * rows + row;
  for (int64_t j = 0; j < wide; j++) store_until(to + j * rows, load(s.rows[j]), to + j * rows + high);
}

}  // namespace

void transpose(const float* x, int64_t rows, int64_t columns, float* y, int threads) {
  parallel_for((columns + SIDE - 1) / SIDE, threads, [&](int64_t chunk) {
    for (int64_t row = 0; row < rows; row += SIDE) square(x, rows, columns, row, chunk * SIDE, y);
  });
}

}  // namespace SPARSE_ISA
