// Finds the epoll descriptor of a loop that tells it to nobody.
//
//   loop.registerDescriptor(fd, EPOLLIN, handler);
//   const std::optional<int> epoll = epoll_that_watches(fd, handler);   // of this process; the loop still owns it
//
// The kernel lists what each epoll descriptor watches, and with which data. So no private member of the loop's class is needed, and
// it is known that an event of this loop brings a pointer to its handler. Empty if no descriptor watches `fd` with this data, or if
// /proc does not tell.
#pragma once

#include <optional>

namespace deft::link::gloo_backend {

[[nodiscard]] std::optional<int> epoll_that_watches(int fd, const void* data);

}  // namespace deft::link::gloo_backend
