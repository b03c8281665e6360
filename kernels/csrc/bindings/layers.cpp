#include "bindings/bind.h"

namespace sparsefl {

void bind_layers(nb::module_& m) {
#define FIELD(name) SPARSE_FIELD(ConvPlanes, name)
  bind_structure(m, "ConvPlanes", FIELD(channels), FIELD(height), FIELD(width), FIELD(batch), FIELD(stride),
                 FIELD(phases), FIELD(top), FIELD(left), FIELD(rows), FIELD(columns), FIELD(lanes), FIELD(chunks),
                 FIELD(plane_size), FIELD(high), FIELD(tile));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvWeights, name)
  bind_structure(m, "ConvWeights", FIELD(rows), FIELD(visits), FIELD(starts), FIELD(order), FIELD(at), FIELD(offsets));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvDense, name)
  bind_structure(m, "ConvDense", FIELD(rows), FIELD(taps), FIELD(block), FIELD(offsets));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvOutput, name)
  bind_structure(m, "ConvOutput", FIELD(height), FIELD(width), FIELD(batch), FIELD(plane_size), FIELD(row_size),
                 FIELD(column_size));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvImages, name)
  bind_structure(m, "ConvImages", FIELD(height), FIELD(width), FIELD(batch), FIELD(out_height), FIELD(out_width),
                 FIELD(top), FIELD(left));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvFilter, name)
  bind_structure(m, "ConvFilter", FIELD(rows), FIELD(channels), FIELD(row_size), FIELD(channel_size), FIELD(flip));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvPattern, name)
  bind_structure(m, "ConvPattern", FIELD(transposed), FIELD(rows), FIELD(taps), FIELD(pointers), FIELD(indices),
                 FIELD(positions), FIELD(taps_at));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(NormShape, name)
  bind_structure(m, "NormShape", FIELD(channels), FIELD(groups), FIELD(size), FIELD(batch));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(RunningStatistics, name)
  bind_structure(m, "RunningStatistics", FIELD(mean), FIELD(var), FIELD(momentum));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(PoolAxis, name)
  bind_structure(m, "PoolAxis", FIELD(in), FIELD(out), FIELD(kernel), FIELD(stride), FIELD(padding));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(PoolShape, name)
  bind_structure(m, "PoolShape", FIELD(channels), FIELD(batch), FIELD(height), FIELD(width));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Samples, name)
  bind_structure(m, "Samples", FIELD(data), FIELD(bytes), FIELD(channels), FIELD(height), FIELD(width), FIELD(mean),
                 FIELD(std), FIELD(channel_step), FIELD(column_step));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Moves, name)
  bind_structure(m, "Moves", FIELD(rows), FIELD(columns), FIELD(mirrored), FIELD(padding));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Dropout, name)
  bind_structure(m, "Dropout", FIELD(p), FIELD(seed), FIELD(step));
#undef FIELD
}

}  // namespace sparsefl
