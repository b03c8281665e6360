// The native operations of ops.def as a table of functions: one table per instruction set, filled by table.cpp.
// Pointers, sizes and plain structures only; what they must satisfy is checked in Python. None of them keeps a pointer.
#pragma once
#include <stdint.h>

#include "bytes/message.h"
#include "core/bf16.h"
#include "layers/conv.h"
#include "layers/shapes.h"
#include "models/models.h"

namespace sparsefl {

#define SPARSE_OP(result, name, arguments) result(*name) arguments;
struct Ops {
  const char* name;
#include "core/ops.def"
};
#undef SPARSE_OP

}  // namespace sparsefl

// Each source defines its functions in this namespace under the names of ops.def; the types keep one home.
namespace SPARSE_ISA {

using sparsefl::bf16;
using sparsefl::ConvDense;
using sparsefl::ConvFilter;
using sparsefl::ConvImages;
using sparsefl::ConvOutput;
using sparsefl::ConvPattern;
using sparsefl::ConvPlanes;
using sparsefl::ConvWeights;
using sparsefl::Dropout;
using sparsefl::Message;
using sparsefl::Moves;
using sparsefl::NormShape;
using sparsefl::Packed;
using sparsefl::PoolAxis;
using sparsefl::PoolShape;
using sparsefl::RunningStatistics;
using sparsefl::Samples;
using sparsefl::Segments;
using sparsefl::Sgd;

#define SPARSE_OP(result, name, arguments) result name arguments;
#include "core/ops.def"
#undef SPARSE_OP

}  // namespace SPARSE_ISA
