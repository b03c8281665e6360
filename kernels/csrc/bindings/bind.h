// How an operation of ops.def and a structure become Python's. Addresses are whole numbers, checked by the callers in
// kernels/*/_cpu.py; nothing is converted, so nothing is written into a temporary. Only this folder knows Python.
#pragma once
#define SPARSE_ISA baseline
#include <nanobind/nanobind.h>

#include <type_traits>

#include "core/dispatch.h"

namespace sparsefl {

namespace nb = nanobind;
using Address = uintptr_t;

// What Python gives for a T: an address for a pointer, the object for a structure, else a number.
template <typename T>
using Given = std::conditional_t<std::is_pointer_v<T>, Address, std::conditional_t<std::is_class_v<T>, const T&, T>>;

template <typename T> T taken(Given<T> given) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<T>(given);
  else
    return given;
}

template <typename T> Given<T> shown(const T& value) {
  if constexpr (std::is_pointer_v<T>)
    return reinterpret_cast<Address>(value);
  else
    return value;
}

// An operation under its name. The GIL is released while it runs.
template <typename Result, typename... Arguments>
void bind(nb::module_& m, const char* name, Result (*Ops::*op)(Arguments...)) {
  m.def(name, [op](Given<Arguments>... given) {
    nb::gil_scoped_release release;
    return (ops().*op)(taken<Arguments>(given)...);
  });
}

// This one is bound by hand (models.cpp): it takes a list.
void bind(nb::module_& m, const char* name, decltype(Ops::masked_average) Ops::* op);

template <typename Structure, typename T> struct Field {
  const char* name;
  T Structure::* member;
};

// A structure whose fields Python gives by name, all of them, and reads: in which order they lie is C++'s business.
template <typename Structure, typename... T>
void bind_structure(nb::module_& m, const char* name, Field<Structure, T>... fields) {
  static_assert((sizeof(T) + ... + alignof(Structure)) > sizeof(Structure), "a field is missing");
  nb::class_<Structure> made(m, name);
  made.def(
      "__init__",
      [fields...](Structure* self, Given<T>... given) {
        new (self) Structure{};
        ((self->*fields.member = taken<T>(given)), ...);
      },
      nb::kw_only(), nb::arg(fields.name)...);
  (made.def_prop_ro(fields.name, [fields](const Structure& self) { return shown<T>(self.*fields.member); }), ...);
}

#define SPARSE_FIELD(structure, name) \
  Field<structure, decltype(structure::name)> { #name, &structure::name }

void bind_models(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_program(nb::module_& m);

}  // namespace sparsefl
