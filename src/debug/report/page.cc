// Puts title and data into the embedded page. No torch.
#include "debug/report/page.h"

#include <string_view>

namespace meshtorch::report::internal {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// Only "<" can begin what ends a script element; in JSON it stands in strings alone, where it can be written
// as a number.
std::string inside_script(const std::string& json) {
  std::string result;
  result.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      result += "\\u003c";
    else
      result += c;
  }
  return result;
}

std::string page_of(const std::string& title, const std::string& data) {
  constexpr std::string_view kTitle = "{{title}}", kData = "{{data}}";
  const std::string_view page = kPage;
  const std::size_t title_at = page.find(kTitle), data_at = page.find(kData);
  std::string text(page.substr(0, title_at));
  text += escaped(title);
  text += page.substr(title_at + kTitle.size(), data_at - title_at - kTitle.size());
  text += inside_script(data);
  text += page.substr(data_at + kData.size());
  return text;
}

}  // namespace meshtorch::report::internal
