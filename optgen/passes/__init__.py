"""Compiler passes, one per file: Algorithm -> Algorithm, Algorithm -> Plan, Plan -> Plan."""
