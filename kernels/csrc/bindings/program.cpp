#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "program/conv_steps.h"
#include "program/layer_steps.h"
#include "program/program.h"
#include "program/visit.h"

namespace sparsefl {
namespace {

using namespace program;

// A step, or another class with public fields, made from all of them by name.
template <typename T, typename... Base, typename... Fields>
void bind_made(nb::module_& m, const char* name, Field<T, Fields>... fields) {
  nb::class_<T, Base...>(m, name).def(
      "__init__",
      [fields...](T* self, Given<Fields>... given) {
        new (self) T{};
        ((self->*fields.member = taken<Fields>(given)), ...);
      },
      nb::kw_only(), nb::arg(fields.name)...);
}

void bind_visits(nb::module_& m) {
#define FIELD(name) SPARSE_FIELD(Stored, name)
  bind_structure(m, "Stored", FIELD(words), FIELD(values), FIELD(nnz), FIELD(rest));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Share, name)
  bind_structure(m, "Share", FIELD(data), FIELD(labels), FIELD(pointers), FIELD(indices), FIELD(wide));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(StreamKey, name)
  bind_structure(m, "StreamKey", FIELD(low), FIELD(high));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Visit, name)
  bind_made<Visit>(m, "Visit", FIELD(segments), FIELD(train), FIELD(test), FIELD(training), FIELD(round), FIELD(epochs),
                   FIELD(batch), FIELD(order), FIELD(moved), FIELD(padding), FIELD(fraction), FIELD(growth),
                   FIELD(growth_order), FIELD(growth_seeds), FIELD(norms), FIELD(origin), FIELD(origin_rest),
                   FIELD(tensors), FIELD(message), FIELD(fingerprint), FIELD(integers), FIELD(weights), FIELD(vectors));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Visitor, name)
  bind_made<Visitor>(m, "Visitor", FIELD(k), FIELD(models), FIELD(mask), FIELD(offsets), FIELD(first_mask),
                     FIELD(first_offsets), FIELD(values), FIELD(rest), FIELD(integers), FIELD(words),
                     FIELD(next_offsets), FIELD(norms));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Visited, name)
  bind_structure(m, "Visited", FIELD(trained), FIELD(failed), FIELD(grown_on), FIELD(bytes), FIELD(seconds));
#undef FIELD
  nb::class_<VisitMemory>(m, "VisitMemory").def(nb::init<>());
  // One after the other, without Python's lock in between; the first that fails is the last.
  m.def("visits", [](const nb::list& given, Workspace& workspace, VisitMemory& memory, int threads) {
    struct Item {
      const Program *training, *growth;
      const Visit* visit;
      const Visitor* who;
    };
    std::vector<Item> items;
    for (nb::handle one : given)
      items.push_back({nb::cast<const Program*>(one[0]), nb::cast<const Program*>(one[1]),
                       nb::cast<const Visit*>(one[2]), nb::cast<const Visitor*>(one[3])});
    std::vector<Visited> done;
    nb::gil_scoped_release release;
    for (const Item& i : items) {
      done.push_back(visit(*i.training, *i.growth, workspace, memory, *i.visit, *i.who, threads));
      if (!done.back().whole()) break;
    }
    return done;
  });
  m.def("draw", [](StreamKey key, uint64_t t, uint64_t k, const std::vector<int64_t>& samples, int64_t epochs,
                   uint32_t corners) {  // for tests
    Drawn drawn;
    drawn.draw({key, t, k}, samples.data(), true, int64_t(samples.size()), epochs, corners);
    return nb::make_tuple(drawn.order, drawn.rows, drawn.columns, drawn.mirrored);
  });
}

}  // namespace

void bind_program(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("program");
  nb::class_<Step>(m, "Step");

#define FIELD(name) SPARSE_FIELD(Arenas, name)
  bind_structure(m, "Arenas", FIELD(words), FIELD(starts), FIELD(offsets), FIELD(values), FIELD(rest), FIELD(integers));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Batches, name)
  bind_structure(m, "Batches", FIELD(data), FIELD(labels), FIELD(order), FIELD(moves), FIELD(samples), FIELD(epochs),
                 FIELD(batch));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Training, name)
  bind_structure(m, "Training", FIELD(sgd), FIELD(max_norm), FIELD(rho), FIELD(pull_rate), FIELD(pull_values),
                 FIELD(pull_rest), FIELD(velocity_values), FIELD(velocity_rest), FIELD(seeds), FIELD(pass), FIELD(stop),
                 FIELD(scores), FIELD(score_starts));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Trained, name)
  bind_structure(m, "Trained", FIELD(loss), FIELD(samples), FIELD(failed), FIELD(failed_loss), FIELD(stopped),
                 FIELD(finite), FIELD(right_before), FIELD(right_after), FIELD(scored));
#undef FIELD

#define FIELD(name) SPARSE_FIELD(Weight, name)
  bind_structure(m, "Weight", FIELD(segment), FIELD(at), FIELD(out), FIELD(in), FIELD(taps), FIELD(blocks),
                 FIELD(entries));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(program::Pass, name)
  bind_made<program::Pass>(m, "Pass", FIELD(output), FIELD(offset), FIELD(taps), FIELD(block), FIELD(few),
                           FIELD(often));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Direction, name)
  bind_made<Direction>(m, "Direction", FIELD(transposed), FIELD(dense), FIELD(weights), FIELD(itemsize), FIELD(pairs),
                       FIELD(on), FIELD(planes), FIELD(passes));
#undef FIELD
  nb::class_<Conv>(m, "Conv").def(nb::init<Weight, std::vector<Direction>>(), nb::kw_only(), nb::arg("weight"),
                                  nb::arg("directions"));

#define FIELD(name) SPARSE_FIELD(ToPlanes, name)
  bind_made<ToPlanes, Step>(m, "ToPlanes", FIELD(planes), FIELD(x), FIELD(to), FIELD(pairs_of));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ConvApply, name)
  bind_made<ConvApply, Step>(m, "ConvApply", FIELD(conv), FIELD(direction), FIELD(planes), FIELD(y), FIELD(scratch),
                             FIELD(bias));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(LinearInputGradient, name)
  bind_made<LinearInputGradient, Step>(m, "LinearInputGradient", FIELD(conv), FIELD(direction), FIELD(dy), FIELD(dx));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Winograd, name)
  bind_made<Winograd, Step>(m, "Winograd", FIELD(conv), FIELD(images), FIELD(filter), FIELD(on), FIELD(x), FIELD(y),
                            FIELD(scratch), FIELD(bias));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(WeightGradient, name)
  bind_made<WeightGradient, Step>(m, "WeightGradient", FIELD(conv), FIELD(kernel), FIELD(on), FIELD(direction),
                                  FIELD(images), FIELD(tiles), FIELD(x), FIELD(dy), FIELD(scratch), FIELD(grow),
                                  FIELD(score));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(GroupNorm, name)
  bind_made<GroupNorm, Step>(m, "GroupNorm", FIELD(shape), FIELD(x), FIELD(y), FIELD(mean), FIELD(rstd), FIELD(gamma),
                             FIELD(beta), FIELD(eps), FIELD(relu));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(GroupNormBackward, name)
  bind_made<GroupNormBackward, Step>(m, "GroupNormBackward", FIELD(shape), FIELD(dy), FIELD(x), FIELD(mean),
                                     FIELD(rstd), FIELD(gamma), FIELD(beta), FIELD(dx), FIELD(relu));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(BatchNorm, name)
  bind_made<BatchNorm, Step>(m, "BatchNorm", FIELD(shape), FIELD(x), FIELD(y), FIELD(mean), FIELD(rstd), FIELD(gamma),
                             FIELD(beta), FIELD(scratch), FIELD(running_mean), FIELD(running_var), FIELD(count),
                             FIELD(eps), FIELD(momentum), FIELD(relu));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(BatchNormBackward, name)
  bind_made<BatchNormBackward, Step>(m, "BatchNormBackward", FIELD(shape), FIELD(dy), FIELD(x), FIELD(mean),
                                     FIELD(rstd), FIELD(gamma), FIELD(beta), FIELD(dx), FIELD(scratch), FIELD(relu));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(MaxPool, name)
  bind_made<MaxPool, Step>(m, "MaxPool", FIELD(shape), FIELD(x), FIELD(y), FIELD(index), FIELD(wide), FIELD(relu));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(MaxPoolBackward, name)
  bind_made<MaxPoolBackward, Step>(m, "MaxPoolBackward", FIELD(shape), FIELD(dy), FIELD(index), FIELD(dx), FIELD(wide));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(AveragePool, name)
  bind_made<AveragePool, Step>(m, "AveragePool", FIELD(shape), FIELD(x), FIELD(y), FIELD(backward));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Relu, name)
  bind_made<Relu, Step>(m, "Relu", FIELD(x), FIELD(other), FIELD(y), FIELD(size));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(ReluBackward, name)
  bind_made<ReluBackward, Step>(m, "ReluBackward", FIELD(dy), FIELD(y), FIELD(dx), FIELD(size));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Add, name)
  bind_made<Add, Step>(m, "Add", FIELD(a), FIELD(b), FIELD(y), FIELD(size));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(BiasGradient, name)
  bind_made<BiasGradient, Step>(m, "BiasGradient", FIELD(dy), FIELD(channels), FIELD(size), FIELD(bias));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Loss, name)
  bind_made<Loss, Step>(m, "Loss", FIELD(logits), FIELD(dlogits), FIELD(classes), FIELD(lanes), FIELD(scratch));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Correct, name)
  bind_made<Correct, Step>(m, "Correct", FIELD(logits), FIELD(classes), FIELD(lanes), FIELD(scratch));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Drop, name)
  bind_made<Drop, Step>(m, "Drop", FIELD(x), FIELD(y), FIELD(elements), FIELD(lanes), FIELD(number), FIELD(p));
#undef FIELD

  nb::class_<Workspace>(m, "Workspace").def(nb::init<>()).def_prop_ro("size", &Workspace::size);
#define FIELD(name) SPARSE_FIELD(Program, name)
  bind_made<Program>(m, "Program", FIELD(lanes), FIELD(input), FIELD(rows), FIELD(size), FIELD(bf16), FIELD(dot),
                     FIELD(segments), FIELD(rest), FIELD(trained), FIELD(convs), FIELD(train), FIELD(last),
                     FIELD(evaluate), FIELD(grow));
#undef FIELD
  const auto free = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "train",
      [](const Program& p, Workspace& w, const Arenas& a, const Batches& b, const Training& t, const Batches* test,
         int threads) {
        nb::gil_scoped_release release;
        return p.run_training(w, a, b, t, test, threads);
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  m.def(
      "gradient",
      [](const Program& p, Workspace& w, const Arenas& a, const Batches& b, Address seeds, Address dvalues,
         Address drest, int threads) {
        return p.run_gradient(w, a, b, taken<const uint64_t*>(seeds), taken<float*>(dvalues), taken<float*>(drest),
                              threads);
      },
      free);
  m.def("profile", [](const Program& p, Workspace& w, const Arenas& a, const Batches& b, bool training, Address seeds,
                      int times, int threads) {
    nb::gil_scoped_release release;
    return p.run_profile(w, a, b, training ? p.train : p.evaluate, taken<const uint64_t*>(seeds), times, threads);
  });
  m.def(
      "evaluate",
      [](const Program& p, Workspace& w, const Arenas& a, const Batches& b, int threads) {
        return p.run_evaluation(w, a, b, threads);
      },
      free);
  m.def(
      "grow",
      [](const Program& p, Workspace& w, const Arenas& a, const Batches& b, Address seeds, Address kept, Address wanted,
         Address words, int threads) {
        return p.run_growth(w, a, b, taken<const uint64_t*>(seeds), taken<const uint64_t*>(kept),
                            taken<const int64_t*>(wanted), taken<uint64_t*>(words), threads);
      },
      free);
  bind_visits(m);
}

}  // namespace sparsefl
