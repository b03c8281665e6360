// Which instruction set runs: the best that this machine has, or the one that choose() names; on a thread, the one that
// it took for itself.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ops.h"

namespace sparsefl {

std::vector<const Ops*> available();  // what this machine runs, slowest first
const Ops& ops();
const Ops* table(const std::string& name);  // throws std::invalid_argument; "": null
void choose(const std::string& name);       // for the process
const Ops* choose_here(const Ops* table);   // for this thread; null: as the process. Returns what it was

}  // namespace sparsefl
