// A C interface to the codecs, and to sums of encoded gradients: n nodes in one process, with the daemon's codecs, laws of
// summation, owners and error feedback (daemon/channel/coded_transfer.h). For bench/codecs and bench/compress_torch.
//
//   void* codec = deft_emulation_open("int8", error, sizeof error);     // null: `error` says why
//   deft_emulation_sum(codec, 2, values, residuals, sum, elements, job, generation, first);
//   deft_emulation_close(codec);
//
// Low-rank codecs know matrices alone:
//
//   void* matrix = deft_emulation_open_matrix("lowrank/rank=2", 2, dimensions, 2, job, first, error, sizeof error);
//   deft_emulation_sum_matrix(matrix, values, sum, generation);         // the residuals are the matrix's own
//   deft_emulation_close_matrix(matrix);
//
// `elements` and `first` are multiples of 256, as the arena of a large tensor is. Any thread; one call at a time on the same
// residuals.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

void* deft_emulation_open(const char* name, char* error, std::size_t error_bytes);
void deft_emulation_close(void* codec);

// True if the codec keeps residuals.
int deft_emulation_uses_feedback(const void* codec);

// Writes the sum that all nodes see to `sum`. `values` and `residuals` have an array of each node; residuals may be null if the
// codec keeps none. Gives the bytes that one node brings to the network; 0 after an error, which is a fault of the caller.
std::size_t deft_emulation_sum(const void* codec, std::size_t nodes, const float* const* values,
                               float* const* residuals, float* sum, std::size_t elements, std::uint64_t job,
                               std::uint64_t generation, std::uint64_t first);

// A matrix of so many dimensions between `nodes` nodes. Null: `error` says why.
void* deft_emulation_open_matrix(const char* codec, std::size_t nodes, const std::uint64_t* dimensions,
                                 std::size_t dimension_count, std::uint64_t job, std::uint64_t first, char* error,
                                 std::size_t error_bytes);
void deft_emulation_close_matrix(void* matrix);
// Sums as deft_emulation_sum does. `values` and `sum` have the elements of the matrix. Generations come one after the other.
std::size_t deft_emulation_sum_matrix(void* matrix, const float* const* values, float* sum, std::uint64_t generation);
// Writes what `node` has left out so far.
void deft_emulation_residual_of_matrix(void* matrix, std::size_t node, float* out);

// The bytes that an encoding may take.
std::size_t deft_emulation_encoded_bytes(const void* codec, std::size_t elements);
// Encodes `values` into `out`, which has room for encoded_bytes. Gives the bytes used; 0 after an error.
std::size_t deft_emulation_encode(const void* codec, const float* values, std::size_t elements, void* out);
// Adds an encoding of `bytes` to `sum`. 1: done; 0: the bytes are no encoding of so many elements.
int deft_emulation_decode_add(const void* codec, const void* in, std::size_t bytes, float* sum, std::size_t elements);
}
