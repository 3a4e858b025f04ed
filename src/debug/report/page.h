// The report page around its data. No torch.
#pragma once

#include <string>

namespace meshtorch::report::internal {

// The page with the places {{title}} and {{data}} open; embedded at build time.
extern const char* const kPage;

// The page of this title and these data, which are JSON. Neither can end the element that it stands in.
std::string page_of(const std::string& title, const std::string& data);

// Text as HTML shows it.
std::string escaped(const std::string& text);
// JSON that may stand inside <script>.
std::string inside_script(const std::string& json);

}  // namespace meshtorch::report::internal
