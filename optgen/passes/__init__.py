"""One idea a file: Algorithm -> Algorithm, the plan, Plan -> Plan. The algebra stands here."""
