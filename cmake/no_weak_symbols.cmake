# Fails when an object compiled for AVX defines a weak (COMDAT) symbol: at link time it could replace the baseline's
# copy of the same inline function or template, and crash a machine without AVX.
# cmake -DNM=nm -DOBJECTS="a.o;b.o" -P no_weak_symbols.cmake
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND "${NM}" -C --defined-only "${object}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
  list(FILTER weak EXCLUDE REGEX "DW\\.ref\\.__gxx_personality_v0")  # data, the same in every object: who unwinds
  if(weak)
    list(JOIN weak "\n" weak)
    message(FATAL_ERROR "weak symbols in ${object} (see the top of kernels/csrc/core/simd.h):\n${weak}")
  endif()
endforeach()
