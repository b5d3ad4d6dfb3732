// Where the other pieces of this installation lie, found from the running program.
#pragma once

#include <filesystem>

namespace deft::tools {

// The folder of the Python package `deft` beside this program (build/python/deft in a tree, else below the prefix's
// lib); empty where there is none.
std::filesystem::path python_package();

}  // namespace deft::tools
