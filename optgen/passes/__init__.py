"""Compiler passes (Algorithm -> Algorithm, Algorithm -> Plan, Plan -> Plan), and their analyses."""
