// Stands in for a header that Debian's libgloo-dev lacks, although gloo's TCP headers include it (cmake/Dependencies.cmake).
//
// Those headers name the types in signatures, in containers and as a member. Their code is in the library. So they have the members
// that they have there, and only the function that a class derived from gloo's Pair needs.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> object_;
};

template <typename T>
class ShareableNonOwningPtr final {
 public:
  std::shared_ptr<T> object_;
};

template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& of) : object_(of.object_) {}
  [[nodiscard]] std::shared_ptr<T> lock() const { return object_.lock(); }

 private:
  std::weak_ptr<T> object_;
};

}  // namespace gloo
