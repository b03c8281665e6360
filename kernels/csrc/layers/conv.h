// A convolution as the native kernels see it; made by kernels/sparse_conv/_cpu_plan.py, field by field.
#pragma once
#include <stdint.h>

namespace sparsefl {

// Where a batch-last tensor [channel][height][width][batch] goes when it is copied into bordered planes:
// plane (chunk, channel, phase), position (i + top, j + left) holds row stride * i + phase row, column likewise.
struct ConvPlanes {
  int64_t channels, height, width, batch;  // of the tensor
  int64_t stride, phases;                  // of an axis: 0 to phases - 1 are what the taps meet
  int64_t top, left;                       // border before the first row and column
  int64_t rows, columns;                   // positions of a plane
  int64_t lanes, chunks;                   // batch columns of a position, and how often they cover the batch
  int64_t plane_size;                      // floats from plane to plane: at least rows * columns * lanes
  int64_t high;                            // rows of a tile of the sparse kernels: 1, 2 or 4
  int64_t tile;                            // floats of such a tile, at most
};

// Weights of one pass. A visit is a row's weights of one block of input channels; visits go by groups of rows, in a
// group by blocks, in a block by length. Visit k is of row order[k] and has offsets starts[k] to starts[k + 1]; its
// weights are those from at[k] on, or from starts[k] where there is no `at`.
struct ConvWeights {
  int64_t rows, visits;
  const int32_t *starts, *order, *at;
  const uint32_t* offsets;  // bytes from an output position to the input that the weight meets
};

// A pass in which every row has every tap of every channel. Weights: [rows in threes][taps][3].
struct ConvDense {
  int64_t rows, taps, block;  // taps of all channels, and of a block of channels
  const uint32_t* offsets;    // of each tap
};

// Outputs of one pass: all rows, at positions (row, column) of a grid that may be every other position of the tensor.
struct ConvOutput {
  int64_t height, width, batch;               // of the grid
  int64_t plane_size, row_size, column_size;  // floats from channel to channel, row to row, column to column
};

// Images of a 3x3 convolution with stride 1, and the border that it adds before the first row and column.
struct ConvImages {
  int64_t height, width, batch, out_height, out_width, top, left;
};

// A full 3x3 weight: element (row, channel, tap) at row * row_size + channel * channel_size + tap, or from the last tap
// to the first.
struct ConvFilter {
  int64_t rows, channels, row_size, channel_size;
  bool flip;
};

// A pattern to make ConvWeights of, indices of a row (and tap) ascending. Rows are output channels with columns channel
// * taps + tap; or transposed: rows are input channels, pointers are by row * taps + tap, and indices are output
// channels.
struct ConvPattern {
  bool transposed;
  int64_t rows, taps;
  const int32_t *pointers, *indices, *positions;  // positions: of the packed values, when transposed
  const int64_t* taps_at;  // bytes from an output position to the tap; -1: not in this pass (transposed)
};

}  // namespace sparsefl
