"""The live driver: gateway, emulated engines, replay client (docs/gateway.md)."""
