package main

// Time zones have their own copy in the binary: a container may have none.
import _ "time/tzdata"
