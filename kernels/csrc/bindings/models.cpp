#include <vector>

#include "bindings/bind.h"

namespace sparsefl {

void bind_models(nb::module_& m) {
#define FIELD(name) SPARSE_FIELD(Segments, name)
  bind_structure(m, "Segments", FIELD(count), FIELD(starts), FIELD(dense));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Sgd, name)
  bind_structure(m, "Sgd", FIELD(lr), FIELD(momentum), FIELD(weight_decay), FIELD(scale), FIELD(nesterov));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Packed, name)
  bind_structure(m, "Packed", FIELD(words), FIELD(values), FIELD(nnz));
#undef FIELD
#define FIELD(name) SPARSE_FIELD(Message, name)
  bind_structure(m, "Message", FIELD(words), FIELD(stored), FIELD(segments), FIELD(weights), FIELD(num_weights),
                 FIELD(vectors), FIELD(num_vectors), FIELD(integers), FIELD(num_integers), FIELD(fingerprint),
                 FIELD(sender), FIELD(round));
#undef FIELD
}

// Models come as a list of numbers, three a model: words, values, nnz. nanobind would fill a std::vector argument where
// nothing may throw, and end the process when there is no memory for it.
void bind(nb::module_& m, const char* name, decltype(Ops::masked_average) Ops::* op) {
  m.def(name, [op](Address mask, int64_t num_words, nb::list given, Address out, int64_t n, int threads) {
    std::vector<Packed> models(nb::len(given) / 3);
    for (size_t j = 0; j < models.size(); j++)
      models[j] = {taken<const uint64_t*>(nb::cast<Address>(given[3 * j])),
                   taken<const float*>(nb::cast<Address>(given[3 * j + 1])), nb::cast<int64_t>(given[3 * j + 2])};
    nb::gil_scoped_release release;
    (ops().*op)(taken<const uint64_t*>(mask), num_words, models.data(), int(models.size()), taken<float*>(out), n,
                threads);
  });
}

}  // namespace sparsefl
