# Writes a source that holds the report page, put together from its files: cmake -D folder=… -D output=… -P EmbedPage.cmake
set(script "")
foreach(name elements words split mesh drawing modules communication redistributions timeline time training memory page)
  file(READ ${folder}/${name}.js text)
  string(APPEND script "${text}")
endforeach()
file(READ ${folder}/style.css style)
file(READ ${folder}/page.html page)
string(REPLACE "{{style}}" "${style}" page "${page}")
string(REPLACE "{{script}}" "${script}" page "${page}")
file(WRITE ${output} "// The report page, made from the files of src/debug/report/page.
#include \"debug/report/page.h\"

const char* const meshtorch::report::internal::kPage = R\"__page__(${page})__page__\";
")
