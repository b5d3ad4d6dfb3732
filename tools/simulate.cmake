# `deft simulate`, as a library that the program `deft` links.
add_library(deft_simulate STATIC simulate.cc simulate_options.cc simulate_output.cc simulate_svg.cc)
target_link_libraries(deft_simulate PUBLIC deft_sim deft_select deft_papers deft_partition)
