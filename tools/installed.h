// Finds the other parts of this installation from the path of the running program.
#pragma once

#include <filesystem>

namespace deft::tools {

// The folder of the Python package `deft`: build/python/deft in a source tree, else lib/deft/python/deft of the prefix. Empty
// if neither exists.
std::filesystem::path python_package();

// The folder of the program of `deft tune`, which Python runs: beside the launcher's. Empty if there is none.
std::filesystem::path tuner();

}  // namespace deft::tools
