// A store in a folder that all nodes of the lab see, for links between processes of one machine.
#pragma once

#include <filesystem>

#include "core/link/link.h"

namespace deft::link {

class FolderStore final : public Store {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  // Waits by looking every millisecond, which only opening a link does.
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

 private:
  [[nodiscard]] std::filesystem::path file(const std::string& key) const;
  const std::filesystem::path folder_;
};

}  // namespace deft::link
