// Finds the other parts of this installation from the path of the running program.
#pragma once

#include <filesystem>

namespace deft::tools {

// The folder of the Python package `deft`: build/python/deft in a source tree, else lib/deft/python/deft of the prefix, else that of
// the wheel. Empty if none exists.
std::filesystem::path python_package();

// The folder that deftrun puts on PYTHONPATH. Empty: Python finds the package by itself, as that of a wheel, or there is none.
std::filesystem::path python_path();

// The folder of the program of `deft tune`, which Python runs: beside the launcher's. Empty if there is none.
std::filesystem::path tuner();

}  // namespace deft::tools
