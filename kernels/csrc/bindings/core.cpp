// The extension module: instruction sets, memory, and every operation of ops.def.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>

#include "bindings/bind.h"
#include "core/memory.h"

using namespace sparsefl;

namespace {

// A buffer of the pool as DLPack hands tensors on. Deleted by whoever has it last, without Python.
struct Managed {
  nb::dlpack::dltensor tensor;
  void* unused = nullptr;
  void (*deleter)(Managed*) = [](Managed* self) { delete self; };
  std::array<int64_t, 8> shape;

  explicit Managed(nb::handle sizes) {
    tensor.ndim = int32_t(nb::len(sizes));
    if (size_t(tensor.ndim) > shape.size()) throw nb::value_error("expected at most 8 dimensions");
    int64_t count = 1;
    for (int32_t i = 0; i < tensor.ndim; i++) {
      shape[i] = nb::cast<int64_t>(sizes[i]);
      if (shape[i] < 0) throw nb::value_error("expected sizes from 0");
      if (__builtin_mul_overflow(count, shape[i], &count)) count = INT64_MAX;
    }
    tensor.data = want(count, sizeof(float), "a tensor");
    tensor.device = {nb::device::cpu::value, 0};
    tensor.dtype = nb::dtype<float>();
    tensor.shape = shape.data();
  }
  Managed(const Managed&) = delete;
  ~Managed() { give(tensor.data); }
};

// For torch's from_dlpack, which renames the capsule that it takes.
nb::object empty(nb::handle shape) {
  auto made = std::make_unique<Managed>(shape);
  PyObject* capsule = PyCapsule_New(made.get(), "dltensor", [](PyObject* self) {
    if (PyCapsule_IsValid(self, "dltensor")) delete static_cast<Managed*>(PyCapsule_GetPointer(self, "dltensor"));
  });
  if (!capsule) throw nb::python_error();
  made.release();
  return nb::steal(capsule);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);

  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Ops* o : available()) names.push_back(o->name);
    return names;
  });
  m.def("isa", [] { return std::string(ops().name); });
  m.def("set_isa", &choose);
  m.def("table", [](const std::string& name) { return shown(table(name)); });
  m.def("choose_here", [](Address given) { return shown(choose_here(taken<const Ops*>(given))); });

  m.def("empty", &empty);
  m.def("pooled", &pooled);
  m.def("bytes_taken", &bytes_taken);
  m.def("bytes_idle", &bytes_idle);
  m.def("trim", &trim);

  bind_models(m);
  bind_layers(m);
  bind_program(m);
#define SPARSE_OP(result, name, arguments) bind(m, #name, &Ops::name);
#include "core/ops.def"
#undef SPARSE_OP
}
