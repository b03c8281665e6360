#include "core/ops.h"

#define SPARSE_TEXT(x) #x
#define SPARSE_NAME(x) SPARSE_TEXT(x)
#define SPARSE_OP(result, name, arguments) name,

namespace SPARSE_ISA {

extern const sparsefl::Ops ops;
const sparsefl::Ops ops = {
    SPARSE_NAME(SPARSE_ISA),
#include "core/ops.def"
};

}  // namespace SPARSE_ISA
