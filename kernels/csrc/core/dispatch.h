// Which instruction set runs: the best that this machine has, or the one that choose() names.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "core/ops.h"

namespace sparsefl {

std::vector<const Ops*> available();  // what this machine runs, slowest first
const Ops& ops();
void choose(const std::string& name);  // throws std::invalid_argument

}  // namespace sparsefl
