# `deft simulate`, as a library that the program `deft` links, with what all commands share.
add_library(deft_simulate STATIC command.cc simulate.cc simulate_options.cc simulate_output.cc simulate_svg.cc)
target_link_libraries(deft_simulate PUBLIC deft_sim deft_select deft_papers deft_partition deft_base nlohmann_json::nlohmann_json)
