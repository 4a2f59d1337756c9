# Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING.
#
# The plugin's undefined symbols are the server's, which the linker cannot check. Those of the engine, and the plugin's own, must
# not be among them: the server would refuse to load it.
execute_process(COMMAND "${NM}" -D --undefined-only "${PLUGIN}" OUTPUT_VARIABLE undefined RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${PLUGIN}")
endif()
string(REGEX MATCHALL " (kingtide_[a-z0-9_]+|_Z[A-Z]*8kingtide[A-Za-z0-9_]+)" missing "${undefined}")
if(missing)
  file(REMOVE "${PLUGIN}")
  string(REPLACE ";" "\n " missing "${missing}")
  message(FATAL_ERROR "The plugin lacks\n ${missing}\nIs ${LIBRARY} older than the plugin's source? Build the engine again.")
endif()
