# `deft simulate`, as a library that the program `deft` links, with what all commands share.
deft_batches(SIMULATE_FILES deft_simulate command.cc policy_argument.cc simulate.cc simulate_options.cc simulate_output.cc simulate_svg.cc)
add_library(deft_simulate STATIC ${SIMULATE_FILES})
target_link_libraries(deft_simulate PUBLIC deft_sim deft_select deft_papers deft_partition deft_base nlohmann_json::nlohmann_json)
